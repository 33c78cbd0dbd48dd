"""Unfavourable conditions set by the machine or the user: a run either copes with them or exits with code 2 and a clear
one-line error."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.survival.runner import PATIENCE, RECIPE, Run, assert_each_prompt_once, cleared, rl_run

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems of its own")


def one_line(run: Run) -> str:
    """Check that the command failed with exit code 2 and no traceback; return its last line, the error."""
    code, printed = run.end()
    assert code == 2, printed
    assert "Traceback" not in printed
    last = printed.strip().splitlines()[-1]
    assert last.startswith("etude: "), printed
    return last


def test_a_recipe_from_the_future(tmp_path: Path) -> None:
    recipe = tmp_path / "future.toml"
    recipe.write_text(RECIPE.read_text().replace("schema = 1", "schema = 99\nnew_section_we_cannot_know = 1"))
    with cleared(Run(tmp_path / "run", recipe=recipe)) as run:
        assert "schema 99" in one_line(run.start())
        assert not run.root.exists()


@as_root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix", "knob"),
    [
        (("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"), "--cap-add SYS_ADMIN"),
        (("unshare", "--user", "--map-root-user"), "map 65,536 ids into this container"),
    ],
)
def test_a_missing_capability_is_named_with_its_knob(tmp_path: Path, prefix: tuple[str, ...], knob: str) -> None:
    with cleared(Run(tmp_path / "run", prefix=prefix)) as run:
        assert knob in one_line(run.start())
        assert run.left_behind() == []


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder outside /dev/shm, where `tmp_path` may be: the test mounts another file system over /dev/shm."""
    with tempfile.TemporaryDirectory(prefix="etude-survival-", dir="/tmp") as folder:
        yield Path(folder)


@as_root
@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
def test_a_poor_machine_will_do(base: Path, on_disk: Path) -> None:
    """A run copes with a /dev/shm of 64 MB and a read-only home. A second run in the same folder is refused."""
    small = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")
    with rl_run(base, on_disk / "run", "rl.steps=2", prefix=small, env={"HOME": "/proc/1"}) as run:
        run.start()
        run.wait(lambda run: run.count("Trained") > 0)
        with cleared(Run(run.root)) as second:
            line = one_line(second.start())
            assert "another run" in line
            assert f"{run.root}" in line
        run.finish_rl()
        assert_each_prompt_once(run, range(8))
        assert run.left_behind() == []


@as_root
@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
def test_a_disk_that_fills_up(base: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700m", "tmpfs", str(disk)], check=True)
    try:
        with rl_run(base, disk / "run", "rl.steps=3") as run:
            run.start()
            run.wait(lambda run: run.count("Trained") > 0)
            filler = disk / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as out:
                while out.write(bytes(65536)):
                    pass
            line = one_line(run).lower()
            assert "disk" in line or "no space" in line
            filler.unlink()
            # Run to the end, not only to the end of RL: on a busy machine the disk may have filled up after RL.
            run.start().finish()
            assert_each_prompt_once(run, range(12))
            assert [found for found in run.left_behind() if not found.startswith("mount")] == []
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
