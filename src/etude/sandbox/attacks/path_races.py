"""Attacks on snapshots and forks: the box is frozen for the copy, but a process in it wakes and swaps folders for
links."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from etude.sandbox.attacks import classes
from etude.sandbox.attacks.attack import PATIENCE, NotTried, Scene, attack, program, start
from etude.sandbox.contract import Box, BoxBusy, Limits, RequestRefused, SandboxLost

SECRET = "seen-in-a-file-of-the-host"
OTHERS_SECRET = "seen-in-a-file-of-another-box"
CREATED = "created-on-the-host-by-a-box"
_PERIODS = (15, 8, 4, 25, 2, 40)
"""Intervals in milliseconds at which the frozen process is woken; each try of a race takes the next one."""
_FOLDERS = 250
_SETTLED = Limits(memory_mb=256, processes=20, cpu_seconds=60, disk_mb=256)


def goals(scene: Scene) -> list[str]:
    """Return the targets that a link in the box may have: the attack's folder on the host, through /proc/PID/root, and
    the folder of all boxes' cells (the files that they have written). The copying process can follow /proc/PID/root of
    any process of the host with no more rights than its own. An attacker would try all pids; here it is this
    process's."""
    host = str(scene.folder)
    return [f"/proc/{os.getpid()}/root{host}", "/cells", f"/proc/{os.getpid()}/root{host}/into"]


@attack(classes.PATHS, race=True)
async def snapshot_of_a_waking_box(scene: Scene) -> None:
    """Swap folders for links once, while a snapshot copies the box's files into a layer."""
    await _race(scene, "once", "snapshot")


@attack(classes.PATHS, race=True)
async def snapshot_in_a_storm_of_swaps(scene: Scene) -> None:
    """Swap a few folders with links without pause, so that the copier looks at a folder but enters a link."""
    await _race(scene, "storm", "snapshot")


@attack(classes.PATHS, race=True)
async def fork_of_a_waking_box(scene: Scene) -> None:
    """Swap folders for links once, while a fork copies the box's files because one of them is held open."""
    await _race(scene, "once", "fork")


async def _race(scene: Scene, how: str, call: str) -> None:
    (scene.folder / "secret").write_text(SECRET, encoding="utf-8")
    (scene.folder / "into").mkdir(exist_ok=True)
    other = await scene.box()
    await other.write_file("hidden", OTHERS_SECRET.encode())
    refused: list[str] = []
    for number in range(scene.races):
        goal, period = goals(scene)[number % len(goals(scene))], _PERIODS[number % len(_PERIODS)]
        try:
            await _try(scene, how, call, goal, period)
        except BoxBusy:
            scene.held()
        except (RequestRefused, FileNotFoundError) as error:
            scene.held()
            refused.append(str(error))
    if len(refused) == scene.races:
        raise NotTried(f"no box was copied: {refused[-1]}")


async def _try(scene: Scene, how: str, call: str, goal: str, period: float) -> None:
    """Copy a box while a process in it swaps folders for links. The copy may be refused, but must not contain files
    from outside the box. A lost box counts as a breach. Other exceptions leave the attack undecided."""
    box = await scene.sandboxes.create(scene.spec(_SETTLED))
    copies: list[Box] = []
    try:
        if call == "fork":  # A process with an open file cannot be moved, so its cell is copied.
            await box.start("exec 3<calc.py; sleep 60", timeout=90)
        await start(box, program("freezing", "swap", str(_FOLDERS), goal, str(period), how))
        try:
            if call == "fork":
                copies = await box.fork()
            else:
                copies = [await scene.sandboxes.create(scene.spec(_SETTLED, await box.snapshot()))]
        except SandboxLost as error:
            scene.breach(f"{call} lost the box: {error}")
            return
        seen = await copies[0].exec(f"grep -rslE '{SECRET}|{OTHERS_SECRET}' swapped", timeout=PATIENCE)
        new = [str(path) for path in _created(scene.folder)]
        scene.count(not seen.stdout and not new, f"{call} by {goal} after {period} ms: {seen.stdout!r} {new}")
        for path in _created(scene.folder):
            path.unlink()
    finally:
        await asyncio.gather(*(each.destroy() for each in (box, *copies)))


def _created(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name == CREATED]
