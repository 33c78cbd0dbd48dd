"""A process that owns boxes until someone kills it: prints a line once they are busy. Run by test_embedded.py."""

import asyncio
import sys
from pathlib import Path

from etude.sandbox import BoxSpec, EmbeddedSandboxes


async def main(root: Path, memory_cells: bool) -> None:
    sandboxes = EmbeddedSandboxes(root, memory_cells=memory_cells)
    boxes = await asyncio.gather(*(sandboxes.create(BoxSpec("host")) for _ in range(4)))
    runs = [
        asyncio.create_task(box.exec("setsid sleep 987 & echo >f; rm /etc/hosts; sleep 987", timeout=99))
        for box in boxes
    ]
    await asyncio.sleep(0.3)
    print("busy", flush=True)  # noqa: T201
    await asyncio.gather(*runs)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] == "memory"))
