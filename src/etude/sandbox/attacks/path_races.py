"""Attacks on snapshots and forks: the box is frozen for the copy, but a process in it wakes and swaps folders for
links."""

from __future__ import annotations

import os
from pathlib import Path

from etude.sandbox.attacks import classes
from etude.sandbox.attacks.attack import PATIENCE, NotTried, Scene, attack, program, start
from etude.sandbox.contract import Box, BoxBusy, Limits, RequestRefused, SandboxLost

SECRET = "seen-in-a-file-of-the-host"
OTHERS_SECRET = "seen-in-a-file-of-another-box"
CREATED = "created-on-the-host-by-a-box"
_PERIODS = (15, 8, 4, 25, 2, 40)
"""Intervals in milliseconds at which the frozen process is woken; each box of a race takes the next one."""
_FOLDERS, _COPIES = 250, 8
"""Number of folders that change places with links, and how often a box is copied: making the folders takes longer than
copying them."""
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
    for number in range(0, scene.races, _COPIES):
        turn, links = number // _COPIES, goals(scene)
        goal, period = links[turn % len(links)], _PERIODS[turn % len(_PERIODS)]
        box = await scene.sandboxes.create(scene.spec(_SETTLED))
        try:
            if call == "fork":  # A process with an open file cannot be moved, so its cell is copied.
                await box.start("exec 3<calc.py; sleep 60", timeout=90)
            await start(box, program("freezing", "swap", str(_FOLDERS), goal, str(period), how))
            for _ in range(min(_COPIES, scene.races - number)):
                refused += await _copy(scene, box, call, f"{call} by {goal} after {period} ms")
        except SandboxLost as error:
            scene.breach(f"{call} lost the box: {error}")
        finally:
            await box.destroy()
    if len(refused) == scene.races:
        raise NotTried(f"no box was copied: {refused[-1]}")


async def _copy(scene: Scene, box: Box, call: str, what: str) -> list[str]:
    """Copy a box while a process in it swaps folders for links. The copy must not contain files from outside the box.
    Return why it was refused, if it was, other than for a process that writes."""
    try:
        if call == "fork":
            [copy] = await box.fork()
        else:
            copy = await scene.sandboxes.create(scene.spec(_SETTLED, await box.snapshot()))
    except BoxBusy:
        scene.held()
        return []
    except (RequestRefused, FileNotFoundError) as error:
        scene.held()
        return [str(error)]
    try:
        seen = await copy.exec(f"grep -rslE '{SECRET}|{OTHERS_SECRET}' swapped", timeout=PATIENCE)
    finally:
        await copy.destroy()
    new = [str(path) for path in _created(scene.folder)]
    scene.count(not seen.stdout and not new, f"{what}: {seen.stdout!r} {new}")
    for path in _created(scene.folder):
        path.unlink()
    return []


def _created(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name == CREATED]
