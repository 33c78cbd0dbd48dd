"""How much one box at its worst slows another. A box with default limits keeps its CPUs, memory, files or our own
process as busy as it can, while another runs `true` again and again.

Prints for each load the median time of `true`, and its ratio to that of calm runs, which alternate with the busy ones.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from itertools import chain
from pathlib import Path

from _report import finish

from etude.journal import ProgressLine
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import Box, BoxSpec, Limits, open_sandboxes, temporary_store

ROUNDS, RUNS, WARM = 4, 30, 5
LIMITS = Limits(cpu_seconds=3600)
LOADS = {
    "spinning": "while True: pass",
    "system_calls": "while True: os.stat('/')",
    "forks": """
while True:
    try:
        if os.fork() == 0: os._exit(0)
        os.wait()
    except OSError: pass
""",
    "commands": """
import subprocess
while True:
    try: subprocess.run(['/bin/true'])
    except OSError: pass
""",
    "memory": """
import mmap
while True:
    area = mmap.mmap(-1, 6 << 20)
    for page in range(0, 6 << 20, 4096): area[page] = 1
    area.close()
""",
    "files": """
name = f'file{os.getpid()}'
while True:
    with open(name, 'wb') as file:
        for _ in range(32): file.write(bytes(100_000))
        file.flush()
        os.fsync(file.fileno())
""",
    "names": """
number = 0
while True:
    number += 1
    os.mkdir(f'{os.getpid()}-{number}')
    os.path.exists(f'no{os.getpid()}-{number}')
    os.rmdir(f'{os.getpid()}-{number}')
""",
    "sockets": """
import socket
one, other = socket.socketpair()
while True:
    one.send(bytes(50_000))
    other.recv(50_000)
""",
    "switches": """
one, other = os.pipe(), os.pipe()
try:
    if os.fork() == 0: one, other = other, one
    else: os.write(one[1], b'x')
except OSError: other = one  # No more processes: it talks to itself.
while True:
    os.write(one[1], os.read(other[0], 1) or b'x')
""",
    "output": "while True: os.write(1, bytes(65536))",
}
"""Programs that each of a box's processes runs."""
_FORK = """
import os
for _ in range(50):
    try:
        if os.fork() == 0: break
    except OSError: break
"""


async def times_of_true(box: Box) -> list[float]:
    taken = []
    for _ in range(WARM + RUNS):
        begun = time.perf_counter()
        done = await box.exec(["/bin/true"], timeout=60)
        taken.append(1000 * (time.perf_counter() - begun))
        assert done.code == 0, done
    return taken[WARM:]


async def beside(box: Box, loaded: Box, load: str) -> list[float]:
    """Run `true` while the other box is busy. What it prints is read, as by a caller who waits for its command."""
    busy = asyncio.create_task(loaded.exec(["python", "-c", _FORK + load], timeout=60))
    await asyncio.sleep(1)
    assert not busy.done(), busy.result()
    taken = await times_of_true(box)
    assert not busy.done(), busy.result()
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    return taken


async def measure(place: Path) -> dict[str, object]:
    sandboxes = open_sandboxes(SandboxRecipe(), place)
    try:
        image = await sandboxes.add_image({"a": b""})
        box = await sandboxes.create(BoxSpec(image))
        calm, busy = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        with ProgressLine("neighbours", ROUNDS * len(LOADS), unit="loads") as line:
            for number, name in enumerate(ROUNDS * list(LOADS)):
                calm[name] += await times_of_true(box)
                loaded = await sandboxes.create(BoxSpec(image, limits=LIMITS))
                busy[name] += await beside(box, loaded, LOADS[name])
                await loaded.destroy()
                line.update(number + 1, note=name)
    finally:
        await sandboxes.close()
    slower = {name: statistics.median(busy[name]) / statistics.median(calm[name]) for name in LOADS}
    for name, ratio in sorted(slower.items(), key=lambda item: -item[1]):
        print(f"{name:14}{statistics.median(busy[name]):8.2f} ms {ratio:7.2f} times")
    return {"worst": max(slower.values()), "true_ms": statistics.median(chain(*calm.values())), "slower": slower}


def main() -> None:
    with temporary_store("etude-bench-") as place:
        finish("neighbours", asyncio.run(measure(place / "boxes")))


if __name__ == "__main__":
    main()
