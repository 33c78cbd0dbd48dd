"""A box's whole life (create, one command, destroy), beside bubblewrap and beside a plain subprocess.

A box has an image, limits and files of its own; bubblewrap gets all namespaces, the host's files read-only and a tmpfs.
A further command in a box that is there, and a fork, are shown too: they have no counterpart in bubblewrap.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _report import finish

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import Box, BoxSpec, open_sandboxes

RUNS, WARM = 60, 10
COMMAND = ["/bin/true"]
BWRAP = (
    "bwrap --unshare-all --die-with-parent --new-session --ro-bind /usr /usr --symlink usr/bin /bin "
    "--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp --tmpfs /work --chdir /work"
)


async def median_ms(work: Callable[[], Awaitable[object]]) -> float:
    taken = []
    for run in range(RUNS + WARM):
        begun = time.perf_counter()
        await work()
        if run >= WARM:
            taken.append(time.perf_counter() - begun)
    return 1000 * statistics.median(taken)


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        sandboxes = open_sandboxes(SandboxRecipe(), Path(place))
        try:
            image = await sandboxes.add_image({"a.py": b"x = 1\n"})

            async def life() -> None:
                box = await sandboxes.create(BoxSpec(image))
                await checked(box)
                await box.destroy()

            standing = await sandboxes.create(BoxSpec(image))

            async def fork() -> None:
                (child,) = await standing.fork()
                await checked(child)
                await child.destroy()

            result: dict[str, object] = {
                "peer": "bubblewrap",
                "ms": await median_ms(life),
                "exec_ms": await median_ms(lambda: checked(standing)),
                "fork_ms": await median_ms(fork),
            }
        finally:
            await sandboxes.close()
    result["subprocess_ms"] = await median_ms(lambda: spawned(COMMAND))
    if shutil.which("bwrap"):
        result["peer_ms"] = await median_ms(lambda: spawned([*BWRAP.split(), *COMMAND]))
        result["ratio"] = result["ms"] / result["peer_ms"]  # type: ignore[operator]
    else:
        print("bubblewrap is not installed (apt-get install bubblewrap): measured beside a plain subprocess alone")
        result["peer"] = "subprocess"
    result["ratio_to_subprocess"] = result["ms"] / result["subprocess_ms"]  # type: ignore[operator]
    finish("sandbox", result)


async def checked(box: Box) -> None:
    done = await box.exec(COMMAND, timeout=10.0)
    assert done.code == 0, done


async def spawned(command: list[str]) -> None:
    # Blocking on purpose: an event loop's child watcher would be measured with it.
    subprocess.run(  # noqa: ASYNC221
        command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    asyncio.run(main())
