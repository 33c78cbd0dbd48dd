"""Attack (one way to break a class's invariant) and Scene (what an attack works with: a backend, boxes, a host folder).

An attack counts its tries with `held` and `breach`. One that could not be tried raises, so that it never counts as
prevented.
"""

from __future__ import annotations

import asyncio
import json
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from etude.sandbox.attacks.classes import AttackClass, Need
from etude.sandbox.contract import Box, BoxSpec, Feature, Limits, Process, Sandboxes
from etude.sandbox.inside import seccomp

PATIENCE = 60.0
"""Timeout in seconds of commands that take a moment on a host without other load."""
SMALL = Limits(memory_mb=96, processes=20, cpu_seconds=30, file_mb=4, disk_mb=16)
LARGE = Limits(memory_mb=96, processes=40, cpu_seconds=20, file_mb=64, disk_mb=32)


class NotTried(Exception):
    """The attack did not run as it should have, so it proves nothing."""


def program(name: str, *words: str) -> list[str]:
    """Return the command that runs a program of programs/ in a box."""
    source = resources.files("etude.sandbox.attacks.programs").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return ["python", "-B", "-c", source, json.dumps(system_calls()), *words]


def system_calls() -> dict[str, int]:
    """Return this machine's system call numbers by name, for the programs in programs/."""
    file = Path(seccomp.__file__).with_name("seccomp.json")
    numbers: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))["numbers"][platform.machine()]
    return numbers


async def prepare(box: Box, command: list[str] | str, *, user: str = "") -> None:
    """Run a command that the attack rests on. Raise NotTried if it fails."""
    done = await box.exec(command, timeout=PATIENCE, user=user)
    if done.code:
        raise NotTried(f"the box could not be prepared: {done}")


async def start(box: Box, command: list[str] | str, *, until: bytes = b"ready", user: str = "") -> Process:
    """Start a command in the background and return once it has printed `until`. Raise NotTried if it does not."""
    process = await box.start(command, timeout=200, user=user)
    said, deadline = b"", asyncio.get_running_loop().time() + PATIENCE
    while until not in said:
        poll = await process.poll(wait=5)
        said += poll.output
        if poll.code is not None or asyncio.get_running_loop().time() > deadline:
            raise NotTried(f"a command did not print {until.decode()!r}: {said[-400:]!r}")
    return process


@dataclass(slots=True)
class Scene:
    sandboxes: Sandboxes
    image: str
    folder: Path
    """An empty folder of the host, which boxes cannot reach."""
    races: int = 20
    """How often an attack that needs luck is tried."""
    made: int = 0
    breaches: list[str] = field(default_factory=list)
    """What each successful try achieved."""
    boxes: list[Box] = field(default_factory=list)

    def held(self, tries: int = 1) -> None:
        self.made += tries

    def breach(self, what: object) -> None:
        self.made += 1
        self.breaches.append(" ".join(str(what).split())[:300])

    def count(self, ok: bool, what: object) -> None:
        """Count a try: as withstood if `ok`, else as a breach, which `what` describes."""
        self.held() if ok else self.breach(what)

    @property
    def users(self) -> list[str]:
        return ["agent", *(["root"] if Feature.ROOT_USER in self.sandboxes.features else [])]

    def spec(self, limits: Limits = SMALL, image: str = "") -> BoxSpec:
        return BoxSpec(image or self.image, limits=limits)

    async def box(self, limits: Limits = SMALL, image: str = "") -> Box:
        made = await self.sandboxes.create(self.spec(limits, image))
        self.boxes.append(made)
        return made

    async def run(
        self, box: Box, name: str, *words: str, source: str = "escapes", user: str = "", timeout: float = PATIENCE
    ) -> str:
        """Run a function of a program in the box, as one try: each line BREACH that it prints is a success. Return what
        it printed."""
        done = await box.exec(program(source, name, *words), timeout=timeout, user=user)
        said = done.stdout.decode("utf-8", "replace")
        if not said.endswith("DONE\n"):
            raise NotTried(f"{name} did not come to its end: code {done.code}, {said[-200:]} {done.stderr[-400:]!r}")
        found = [line for line in said.splitlines() if line.startswith("BREACH")]
        self.count(not found, f"{name} as {user or 'agent'}: {'; '.join(found)}")
        return said

    async def run_as_all(self, box: Box, name: str, *words: str, source: str = "escapes") -> None:
        for user in self.users:
            await self.run(box, name, *words, source=source, user=user)

    async def lives(self, box: Box) -> None:
        """Run a command in the box to see whether it still answers, and count this try; no answer is a breach."""
        done = await box.exec("echo alive", timeout=PATIENCE)
        self.count(done.stdout == b"alive\n", f"box {box.id} does not answer: {done}")


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    of: AttackClass
    needs: tuple[Need, ...]
    act: Act
    race: bool
    """Whether the attack needs luck, so that it is tried `Scene.races` times."""


def attack(of: AttackClass, *needs: Need, race: bool = False) -> Callable[[Act], Attack]:
    """Return a decorator that turns a function into an Attack of the class `of`, named after the function. The attack
    needs `needs`, besides what all attacks of its class need."""

    def make(act: Act) -> Attack:
        name = getattr(act, "__name__", "").replace("_", "-")
        return Attack(name, of, (*of.needs, *needs), act, race)

    return make
