"""What the machine or the user may do to a run: each either does not matter, or is one clear line and exit code 2."""

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
    """The command failed for a reason that it says in one line at the end."""
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
    """`tmp_path` may lie in /dev/shm, which another one hides."""
    with tempfile.TemporaryDirectory(prefix="etude-survival-", dir="/tmp") as folder:
        yield Path(folder)


@as_root
@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
def test_a_poor_machine_will_do(base: Path, on_disk: Path) -> None:
    """/dev/shm of 64 MB, a home that cannot be written to; and a second run in the same folder is refused."""
    small = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")
    with rl_run(base, on_disk / "run", prefix=small, env={"HOME": "/proc/1"}) as run:
        run.start()
        run.wait(lambda run: run.count("Trained") > 0)
        with cleared(Run(run.root)) as second:
            line = one_line(second.start())
            assert "another run" in line
            assert f"{run.root}" in line
        run.finish_rl()
        assert_each_prompt_once(run, range(20))
        assert run.left_behind() == []


@as_root
@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
def test_a_disk_that_fills_up(base: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700m", "tmpfs", str(disk)], check=True)
    try:
        with rl_run(base, disk / "run") as run:
            run.start()
            run.wait(lambda run: run.count("Trained") > 0)
            filler = disk / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as out:
                while out.write(bytes(65536)):
                    pass
            line = one_line(run).lower()
            assert "disk" in line or "no space" in line
            filler.unlink()
            # To the end: on a busy machine the disk may be full only once RL is done.
            run.start().finish()
            assert_each_prompt_once(run, range(20))
            assert [found for found in run.left_behind() if not found.startswith("mount")] == []
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
