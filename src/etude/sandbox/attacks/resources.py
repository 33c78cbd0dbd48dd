"""Attacks on what all boxes share of one kernel: its tables, its buffers, and the number of processes."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from etude.sandbox.attacks import classes
from etude.sandbox.attacks.attack import PATIENCE, Attack, NotTried, Scene, attack, program, start
from etude.sandbox.attacks.classes import Need
from etude.sandbox.attacks.programs import tables
from etude.sandbox.contract import Capability, Feature, Limits, SandboxError

_ROOMY = Limits(memory_mb=256, processes=40, cpu_seconds=60, file_mb=4, disk_mb=64)
_CROWDED = Limits(memory_mb=4096, processes=20, cpu_seconds=60, file_mb=4, disk_mb=16)
_HOLDERS = {"terminals": 4, "epoll": 4, "pipes": 2, "call_filters": 4}
"""Number of processes needed to use up a table; one for the tables not named here. With its 1,024 descriptors, a single
process cannot use up any of these tables."""
_COUNTED_BY_USER = ("pipes", "in_flight")
"""Tables that the kernel limits for each user id only. So boxes with the same user id share them."""
_NEEDS: dict[str, tuple[Need, ...]] = {
    **dict.fromkeys(_COUNTED_BY_USER, (Capability.KERNEL_TABLES, Feature.OWN_IDS)),
    **dict.fromkeys(tables.DENIED, (Capability.SYSTEM_CALLS,)),
    **dict.fromkeys(("timers", "message_queues"), (Capability.OWN_INIT,)),
    "segments": (Capability.NAMESPACES,),
}
"""Capabilities and features that keep a box from using up a table; KERNEL_TABLES for tables not named here. OWN_INIT is
among them because a box with its own init has a user namespace, which limits what the kernel counts there."""


def _of_table(table: str) -> Attack:
    """Return an attack that takes all that it can of a table of the kernel; then another box and the host want some."""

    async def act(scene: Scene) -> None:
        first, second = [await scene.box(_ROOMY) for _ in range(2)]
        if "BREACH" in (said := await _probe_here(table, scene.folder)):
            raise NotTried(f"the host has none left before the attack: {said}")
        for user in scene.users:
            taking = program("tables", "take", table)
            holders = [await start(first, taking, until=b"HELD", user=user) for _ in range(_HOLDERS.get(table, 1))]
            # Whose user id on the host is that of its boxes: an ordinary user without subordinate ids.
            await scene.run(second, "probe", table, "box", source="tables", user=user)
            said = await _probe_here(table, scene.folder)
            scene.count("BREACH" not in said, f"on the host, as user {os.geteuid()}: {said}")
            await _make_another(scene)
            for holder in holders:
                await holder.kill()
        await scene.lives(first)

    act.__name__ = f"all_{table}"
    return attack(classes.TABLES, *_NEEDS.get(table, (Capability.KERNEL_TABLES,)), Feature.BACKGROUND)(act)


async def _make_another(scene: Scene) -> None:
    """Make one more box, or count a breach if that fails. Its limits differ from those of all other boxes, so that the
    backend must make it now and cannot hand out one that it has prepared."""
    try:
        await scene.lives(await scene.box(replace(_ROOMY, processes=_ROOMY.processes + len(scene.boxes))))
    except SandboxError as error:
        scene.breach(f"no box can be made: {error}")


async def _probe_here(table: str, folder: Path) -> str:
    _, *words = program("tables", "probe", table, "host")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=pipe, stderr=pipe, cwd=folder)
    out, errors = await process.communicate()
    said = out.decode(errors="replace")
    if "DONE" not in said:
        raise NotTried(f"{table} on the host: {said}{errors.decode(errors='replace')[-300:]}")
    return said.removesuffix("DONE\n")


TABLE_ATTACKS = [_of_table(name) for name in tables.TABLES]


_ALL_OF_64 = 161
"""MiB that the attacks on buffers try to hold in a box with 64 MiB of memory and 16 MiB of disk. That is one more than
the box has in all: memory, disk, /dev/shm (64) and pid 1 (16). On cgroups of version 1, TCP and UDP have a quarter."""


def _of_buffers(kind: str) -> Attack:
    """Return an attack by which a box of 64 MiB keeps more than all that it may have, in the kernel's buffers."""

    async def act(scene: Scene) -> None:
        box = await scene.box(Limits(memory_mb=64, processes=20, cpu_seconds=30, file_mb=4, disk_mb=16))
        done = await box.exec(program("buffers", kind, str(_ALL_OF_64)), timeout=PATIENCE)
        said = done.stdout.decode("utf-8", "replace")
        if "DONE" not in said and not done.limit and done.code != 137:
            raise NotTried(f"{kind}: {done}")
        scene.count("BREACH" not in said, f"a box of 64 MiB: {said.strip()}")
        await scene.lives(box)

    act.__name__ = f"{kind}_buffers"
    return attack(classes.BUFFERS)(act)


BUFFER_ATTACKS = [_of_buffers(kind) for kind in ("tcp", "udp", "unix_streams", "unix_datagrams", "pipes")]


@attack(classes.PROCESSES)
async def more_processes_than_allowed(scene: Scene) -> None:
    """Start more processes or threads than the box may have, as one user, as root, and as many users in turn."""
    box = await scene.box(_CROWDED)
    for user in scene.users:
        for how in ("same_user", "threads", *(["many_users"] if user == "root" else [])):
            done = await box.exec(program("crowding", how, str(_CROWDED.processes)), timeout=PATIENCE, user=user)
            said = done.stdout.decode("utf-8", "replace")
            if "DONE" not in said:
                raise NotTried(f"{how} as {user}: {done}")
            scene.count("BREACH" not in said, f"as {user}: {said.strip()}")
    await scene.lives(box)
