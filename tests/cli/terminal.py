"""A command at a terminal of its own, as a person meets it: what it shows is awaited, what is typed has an echo."""

from __future__ import annotations

import codecs
import fcntl
import os
import select
import signal
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

CTRL_C = "\x03"
END_OF_INPUT = "\x04"
_PATIENCE = 120.0


class Terminal:
    """stdin and stdout are the terminal, so that Ctrl-C is a signal; stderr goes to a file, to be looked at alone."""

    def __init__(self, command: Sequence[str | Path], stderr: Path, env: Mapping[str, str]) -> None:
        self._ours, theirs = os.openpty()
        self._stderr = stderr
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=theirs,
                stderr=errors,
                env={**os.environ, "TERM": "dumb", "COLUMNS": "200", **env},
                start_new_session=True,
                preexec_fn=_become_the_foreground,
            )
        os.close(theirs)

    def until(self, text: str) -> str:
        """Waits until this is shown, and returns what was shown up to there since the last wait."""
        deadline = time.monotonic() + _PATIENCE
        while text not in self.shown:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{text!r} was not shown: {self.shown!r}, stderr {self._stderr.read_text()!r}")
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> tuple[int, str, str]:
        """Exit code, what was shown since the last wait, and all of stderr."""
        deadline = time.monotonic() + _PATIENCE
        while self._read(deadline - time.monotonic()):
            pass
        code = self.process.wait(max(deadline - time.monotonic(), 0.1))
        return code, self.shown, self._stderr.read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _read(self, patience: float) -> bool:
        """False when the other end is closed or patience is over."""
        if not select.select([self._ours], [], [], max(patience, 0.0))[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # how Linux says that nobody has the terminal open any more
            return False
        # What is read may end anywhere: within a character, or between the two of a line's end.
        self.shown = (self.shown + self._decoder.decode(data)).replace("\r\n", "\n")
        return bool(data)


def _become_the_foreground() -> None:
    """A job that a script put in the background is deaf to Ctrl-C, and so are its children; nobody's terminal is."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
