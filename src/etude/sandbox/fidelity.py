"""Can an agent tell a box from a person's machine? Runs the probes of fidelity.toml in a box and in a login, and
compares.

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
class Tell:
    name: str
    asks: str
    """The probe: a line of shell."""
    differs: str = ""
    """Why a box may answer differently from a login; empty: it may not."""
    person: str | None = None
    """What a person's machine answers, for cases where this host may itself be unusual."""


@dataclass(frozen=True, slots=True)
class Difference:
    tell: Tell
    box: str
    login: str


def load_tells() -> list[Tell]:
    text = (resources.files("etude.sandbox") / "fidelity.toml").read_text(encoding="utf-8")
    return [Tell(name, **fields) for name, fields in tomllib.loads(text).items()]


def compare(tells: list[Tell], box: dict[str, str], login: dict[str, str]) -> list[Difference]:
    return [Difference(t, box[t.name], login[t.name]) for t in tells if box[t.name] not in (login[t.name], t.person)]


def fidelity() -> tuple[list[Tell], list[Difference]]:
    tells = load_tells()
    box = asyncio.run(ask_box(tells))
    return tells, compare(tells, box, ask_login(tells))


def report(tells: list[Tell], differences: list[Difference]) -> str:
    width = max(len(tell.name) for tell in tells)
    lines = []
    for difference in sorted(differences, key=lambda difference: bool(difference.tell.differs)):
        box, login = (" ".join(text.split()) or "nothing" for text in (difference.box, difference.login))
        why = difference.tell.differs or "UNEXPLAINED"
        lines.append(f"{difference.tell.name:<{width}}  box: {box}; login: {login}\n{'':{width}}  {why}")
    unexplained = sum(not difference.tell.differs for difference in differences)
    lines.append(f"{len(tells)} tells, {len(differences)} answered differently, {unexplained} of them unexplained")
    return "\n".join(lines)


def script(tells: list[Tell]) -> str:
    """A shell script that prints each answer between two marker bytes, since a terminal adds output of its own."""
    asked = (f"printf '\\001%s ' {tell.name}; ({tell.asks}\n) 2>/dev/null; printf '\\002\\n'" for tell in tells)
    return "\n".join(asked)


def parse(said: str) -> dict[str, str]:
    answers = {}
    for part in said.replace("\r\n", "\n").split(_BEGIN)[1:]:
        name, _, answer = part.partition(_END)[0].partition(" ")
        answers[name] = answer.strip()
    return answers


async def ask_box(tells: list[Tell]) -> dict[str, str]:
    with temporary_store("etude-fidelity-") as folder:
        sandboxes = EmbeddedSandboxes(folder)
        try:
            box = await sandboxes.create(BoxSpec("host"))
            process = await box.start(["/bin/sh", "-c", script(tells)], timeout=_SECONDS, terminal=Terminal())
            said = b""
            while (poll := await process.poll(wait=_SECONDS)).code is None:
                said += poll.output
            return parse((said + poll.output).decode("utf-8", "replace"))
        finally:
            await sandboxes.close()


def ask_login(tells: list[Tell]) -> dict[str, str]:
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
        _set_size(theirs)
        process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *(ids if os.geteuid() == 0 else []), "/bin/sh", "-c", script(tells)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=user.pw_dir if os.access(user.pw_dir, os.X_OK) else "/",
        )
        os.close(theirs)
        said = b""
        # Reading from a terminal that nobody holds open any more fails with an error.
        with process, contextlib.suppress(OSError):
            while data := os.read(ours, 1 << 16):
                said += data
    finally:
        os.close(ours)
    answers = parse(said.decode("utf-8", "replace"))
    if missing := [tell.name for tell in tells if tell.name not in answers]:
        raise SandboxError(f"a login as {user.pw_name} did not answer {', '.join(missing)}: {said[-200:]!r}")
    return answers


def _set_size(terminal: int) -> None:
    size = Terminal()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("=HHHH", size.rows, size.columns, 0, 0))


def _ordinary_user() -> pwd.struct_passwd:
    """The current user; for root, the first human user of this host, or else nobody."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    people = (user for user in pwd.getpwall() if 1000 <= user.pw_uid < _NOBODY and user.pw_shell.endswith("sh"))
    return next(people, pwd.getpwuid(_NOBODY))
