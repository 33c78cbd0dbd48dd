"""A disk that is full is told as such, whatever a backend writes to its store, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILLING = """
import asyncio, sys
from pathlib import Path
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import BoxSpec, DiskFull, open_sandboxes

def fill():
    with open("fill", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

async def main(mode):
    sandboxes = open_sandboxes(SandboxRecipe(mode=mode), Path("store"))
    image = await sandboxes.add_image({"a": b"1" * 20_000})
    await (await sandboxes.create(BoxSpec(image))).destroy()
    fill()
    try:
        await sandboxes.create(BoxSpec(image))
    except DiskFull as error:
        print(error)
    store = sandboxes.store
    print([path for path in store.scratch.rglob("*") if path.parent.name in ("leases", "boxes")])
    Path("fill").unlink()
    await (await sandboxes.create(BoxSpec(image))).destroy()
    await sandboxes.close()
    fill()
    try:
        open_sandboxes(SandboxRecipe(mode=mode), Path("other"))
    except DiskFull as error:
        print(error)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize(("mode", "as_root"), [("embedded", True), ("embedded", False), ("plain", False)])
def test_a_full_disk(tmp_path: Path, mode: str, as_root: bool) -> None:
    """On a file system of 3 MiB, which goes with its process."""
    if as_root and os.geteuid() != 0:
        pytest.skip("only root has ids to give away")
    (tmp_path / "disk").mkdir()
    mounted = f'mount -t tmpfs -o size=3m small {tmp_path}/disk && cd {tmp_path}/disk && exec "$@"'
    apart = ["unshare", *([] if as_root else ["--map-root-user"]), "--mount"]
    no_root = [] if as_root else ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    command = [*apart, "sh", "-c", mounted, "sh", *no_root, sys.executable, "-c", FILLING, mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = f"no room in {tmp_path}/disk/{{}}; `etude sandbox images collect` frees what is not used"
    assert done.stdout.splitlines() == [said.format("store"), "[]", said.format("other")], done.stderr[-2000:]


NO_NAMESPACES = """
import asyncio
from pathlib import Path
from etude.sandbox import BoxSpec, EmbeddedSandboxes, SandboxUnavailable

async def main():
    sandboxes = EmbeddedSandboxes(Path("store"))
    try:
        await sandboxes.create(BoxSpec("host"))
    except SandboxUnavailable as error:
        print(error)
    await sandboxes.close()

asyncio.run(main())
"""


def test_namespaces_that_have_run_out_are_no_full_disk(tmp_path: Path) -> None:
    """The kernel has the same error for both."""
    limited = 'echo 0 >/proc/sys/user/max_ipc_namespaces && exec "$@"'
    apart = ["unshare", "--user", "--map-root-user", "sh", "-c", limited, "sh"]
    no_root = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    command = [*apart, *no_root, sys.executable, "-c", NO_NAMESPACES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "raise user.max_" in done.stdout, done.stderr[-2000:]
