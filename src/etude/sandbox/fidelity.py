"""Checks how closely a box resembles an ordinary machine: runs the shell probes of fidelity.toml in a box and in a
login shell of this host, and compares the answers.

The login is that of an ordinary user of this host, with a terminal and the few variables that login programs set.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import pwd
import struct
import subprocess
import termios
import tomllib
from dataclasses import dataclass
from importlib import resources

from etude.sandbox.contract import BoxSpec, SandboxError, Terminal
from etude.sandbox.embedded import EmbeddedSandboxes, temporary_store

_SECONDS = 30.0
_BEGIN, _END = "\x01", "\x02"
_NOBODY = 65534


@dataclass(frozen=True, slots=True)
class FidelityCheck:
    """One shell probe by which an agent could notice that it is in a box: a table of fidelity.toml."""

    name: str
    asks: str
    differs: str = ""
    """The known reason why a box may answer differently. Empty: the answers must be the same."""
    person: str | None = None
    """The answer that most people's machines give. A box may give it instead of the login shell's answer. None: it may
    not."""


@dataclass(frozen=True, slots=True)
class Difference:
    check: FidelityCheck
    box: str
    login: str


def load_checks() -> list[FidelityCheck]:
    text = (resources.files("etude.sandbox") / "fidelity.toml").read_text(encoding="utf-8")
    return [FidelityCheck(name, **fields) for name, fields in tomllib.loads(text).items()]


def compare(checks: list[FidelityCheck], box: dict[str, str], login: dict[str, str]) -> list[Difference]:
    """Return a Difference for each check to which the box answers neither as the login shell nor as most people's
    machines (`FidelityCheck.person`)."""
    return [Difference(t, box[t.name], login[t.name]) for t in checks if box[t.name] not in (login[t.name], t.person)]


def fidelity() -> tuple[list[FidelityCheck], list[Difference]]:
    checks = load_checks()
    box = asyncio.run(run_in_box(checks))
    return checks, compare(checks, box, run_in_login(checks))


def report(checks: list[FidelityCheck], differences: list[Difference]) -> str:
    """Format the differences as text, unexplained ones first."""
    width = max(len(check.name) for check in checks)
    lines = []
    for difference in sorted(differences, key=lambda difference: bool(difference.check.differs)):
        box, login = (" ".join(text.split()) or "nothing" for text in (difference.box, difference.login))
        why = difference.check.differs or "UNEXPLAINED"
        lines.append(f"{difference.check.name:<{width}}  box: {box}; login: {login}\n{'':{width}}  {why}")
    unexplained = sum(not difference.check.differs for difference in differences)
    lines.append(f"{len(checks)} checks, {len(differences)} answered differently, {unexplained} of them unexplained")
    return "\n".join(lines)


def script(checks: list[FidelityCheck]) -> str:
    """Return a shell script that prints the answer of each check between two marker bytes, since a terminal adds output
    of its own."""
    asked = (f"printf '\\001%s ' {check.name}; ({check.asks}\n) 2>/dev/null; printf '\\002\\n'" for check in checks)
    return "\n".join(asked)


def parse(output: str) -> dict[str, str]:
    """Return the answers in the output of `script`, by check name."""
    answers = {}
    for part in output.replace("\r\n", "\n").split(_BEGIN)[1:]:
        name, _, answer = part.partition(_END)[0].partition(" ")
        answers[name] = answer.strip()
    return answers


async def run_in_box(checks: list[FidelityCheck]) -> dict[str, str]:
    with temporary_store("etude-fidelity-") as folder:
        sandboxes = EmbeddedSandboxes(folder)
        try:
            box = await sandboxes.create(BoxSpec("host"))
            process = await box.start(["/bin/sh", "-c", script(checks)], timeout=_SECONDS, terminal=Terminal())
            output = b""
            while (poll := await process.poll(wait=_SECONDS)).code is None:
                output += poll.output
            return parse((output + poll.output).decode("utf-8", "replace"))
        finally:
            await sandboxes.close()


def run_in_login(checks: list[FidelityCheck]) -> dict[str, str]:
    """Run the checks as an ordinary user of this host, on a terminal."""
    user = _ordinary_user()
    environment = {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    ids = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    ours, theirs = pty.openpty()
    os.set_blocking(ours, True)
    try:
        size = Terminal()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("=HHHH", size.rows, size.columns, 0, 0))
        process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *(ids if os.geteuid() == 0 else []), "/bin/sh", "-c", script(checks)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=user.pw_dir if os.access(user.pw_dir, os.X_OK) else "/",
        )
        os.close(theirs)
        output = b""
        # Once no process has the terminal open any more, reading from it fails with an error.
        with process, contextlib.suppress(OSError):
            while data := os.read(ours, 1 << 16):
                output += data
    finally:
        os.close(ours)
    answers = parse(output.decode("utf-8", "replace"))
    if missing := [check.name for check in checks if check.name not in answers]:
        raise SandboxError(f"a login as {user.pw_name} did not answer {', '.join(missing)}: {output[-200:]!r}")
    return answers


def _ordinary_user() -> pwd.struct_passwd:
    """Return the current user; for root, the first human user of this host, or else "nobody"."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    people = (user for user in pwd.getpwall() if 1000 <= user.pw_uid < _NOBODY and user.pw_shell.endswith("sh"))
    return next(people, pwd.getpwuid(_NOBODY))
