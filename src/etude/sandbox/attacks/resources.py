"""What boxes share of one kernel: its tables, its buffers, and the number of processes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from etude.sandbox.attacks import classes
from etude.sandbox.attacks.attack import PATIENCE, Attack, NotTried, Scene, attack, program
from etude.sandbox.attacks.classes import Need
from etude.sandbox.attacks.programs import tables
from etude.sandbox.contract import Box, Feature, Limits, Process

_ROOMY = Limits(memory_mb=256, processes=40, cpu_seconds=60, file_mb=4, disk_mb=64)
_CROWDED = Limits(memory_mb=4096, processes=20, cpu_seconds=60, file_mb=4, disk_mb=16)
_HOLDERS = {"terminals": 4, "epoll": 4, "pipes": 2, "filters": 4}
"""Processes that take from a table, where one does not get all: each may have 1,024 descriptors."""


def _of_table(table: str) -> Attack:
    async def act(scene: Scene) -> None:
        first, second = [await scene.box(_ROOMY) for _ in range(2)]
        if "BREACH" in (said := await _probe_here(table, scene.folder)):
            raise NotTried(f"the host has none left before the attack: {said}")
        for user in scene.users:
            holders = [await _hold(first, table, user) for _ in range(_HOLDERS.get(table, 1))]
            # Whose user id on the host is that of its boxes: an ordinary user without subordinate ids.
            await scene.run(second, "probe", table, source="tables", user=user)
            said = await _probe_here(table, scene.folder)
            scene.count("BREACH" not in said, f"on the host, as user {os.geteuid()}: {said}")
            for holder in holders:
                await holder.kill()
        await scene.lives(first)

    act.__name__ = f"all_{table}"
    act.__doc__ = f"Take all {table.replace('_', ' ')}; then another box and the host want some"
    return attack(classes.TABLES, Feature.BACKGROUND)(act)


async def _hold(box: Box, table: str, user: str) -> Process:
    process = await box.start(["python", "-B", "-c", program("tables"), "{}", "take", table], timeout=200, user=user)
    said = b""
    for _ in range(60):
        poll = await process.poll(wait=1)
        said += poll.output
        if b"HELD" in said:
            return process
        if poll.code is not None:
            break
    raise NotTried(f"{table} as {user}: {said[-300:]!r}")


async def _probe_here(table: str, folder: Path) -> str:
    command = [sys.executable, "-B", "-c", program("tables"), "{}", "probe", table]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, cwd=folder)
    out, errors = await process.communicate()
    said = out.decode(errors="replace")
    if "DONE" not in said:
        raise NotTried(f"{table} on the host: {said}{errors.decode(errors='replace')[-300:]}")
    return said.removesuffix("DONE\n")


TABLE_ATTACKS = [_of_table(name) for name in tables.TABLES]


def _of_buffers(kind: str, *needs: Need) -> Attack:
    async def act(scene: Scene) -> None:
        box = await scene.box(Limits(memory_mb=64, processes=20, cpu_seconds=30, file_mb=4, disk_mb=16))
        most = 256  # MiB: twice the box's memory, files and /dev/shm together.
        command = ["python", "-B", "-c", program("buffers"), "{}", kind, str(most)]
        done = await box.exec(command, timeout=PATIENCE)
        said = done.stdout.decode("utf-8", "replace")
        if "DONE" not in said and not done.limit and done.code != 137:
            raise NotTried(f"{kind}: {done}")
        scene.count("BREACH" not in said, f"a box of 64 MiB: {said.strip()}")
        await scene.lives(box)

    act.__name__, act.__doc__ = f"{kind}_buffers", f"Keep 256 MiB in {kind.replace('_', ' ')}, in a box of 64 MiB"
    return attack(classes.BUFFERS, *needs)(act)


BUFFER_ATTACKS = [_of_buffers(kind) for kind in ("tcp", "udp", "unix_streams", "unix_datagrams", "pipes")]


@attack(classes.PROCESSES)
async def more_processes_than_allowed(scene: Scene) -> None:
    """Start more processes or threads than the box may have, as one user, as root, and as many users in turn."""
    box = await scene.box(_CROWDED)
    for user in scene.users:
        for how in ("same_user", "threads", *(["many_users"] if user == "root" else [])):
            command = ["python", "-B", "-c", program("crowding"), "{}", how, str(_CROWDED.processes)]
            done = await box.exec(command, timeout=PATIENCE, user=user)
            said = done.stdout.decode("utf-8", "replace")
            if "DONE" not in said:
                raise NotTried(f"{how} as {user}: {done}")
            scene.count("BREACH" not in said, f"as {user}: {said.strip()}")
    await scene.lives(box)
