"""A process that owns boxes until someone kills it. Run by test_embedded.py.

`busy`: prints a line once its boxes run commands. `storm`: prints a line, then makes, forks and destroys boxes.
"""

import asyncio
import itertools
import sys
from pathlib import Path

from etude.sandbox import BoxSpec, EmbeddedSandboxes


async def busy(sandboxes: EmbeddedSandboxes) -> None:
    boxes = await asyncio.gather(*(sandboxes.create(BoxSpec("host")) for _ in range(4)))
    runs = [
        asyncio.create_task(box.exec("setsid sleep 987 & echo >f; rm /etc/hosts; sleep 987", timeout=99))
        for box in boxes
    ]
    for box in boxes:
        while (await box.stats()).processes < 3:  # noqa: ASYNC110  # The shell and two that sleep.
            await asyncio.sleep(0.01)
    print("busy", flush=True)  # noqa: T201
    await asyncio.gather(*runs)


async def storm(sandboxes: EmbeddedSandboxes) -> None:
    async def one(number: int) -> None:
        for turn in itertools.count():
            box = await sandboxes.create(BoxSpec("host"))
            await box.exec(f"mkdir -p d{number}; echo {turn} >d{number}/f; rm -f /etc/hosts", timeout=20)
            for child in await box.fork(2, kill=bool(turn % 2)):
                await child.destroy()
            if turn % 5 == number:
                await box.snapshot()
            await box.destroy()

    print("storm", flush=True)  # noqa: T201
    await asyncio.gather(*(one(number) for number in range(3)))


async def main(root: Path, cells: str, what: str) -> None:
    sandboxes = EmbeddedSandboxes(root, memory_cells=cells == "memory")
    await {"busy": busy, "storm": storm}[what](sandboxes)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
