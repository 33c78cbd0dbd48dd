"""The lesser modes: what they keep of the contract, how one is chosen, and that what does not isolate grades nothing.

They are for ordinary users alone; run by root, this file runs itself again as nobody.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.contract.sandbox import Make, SandboxContract
from tests.needs import needs
from tests.sandbox.as_nobody import for_root, pytest_as_nobody

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import BoxSpec, EmbeddedSandboxes, Feature, ImageError, Limits, SandboxUnavailable, open_sandboxes
from etude.sandbox.modes import MODES, FolderSandboxes, mode_choice, mode_options, open_mode
from etude.sandbox.modes.folder_backend import copy_trees
from etude.tasks import Grader

ROOT = os.geteuid() == 0
ordinary = pytest.mark.skipif(ROOT, reason="not for root; run again as nobody by test_all_of_this_as_an_ordinary_user")

EVERYWHERE = """
same_snapshot_has_the_same_id destroy_is_idempotent_and_final closed_backend_leaves_no_process_and_makes_no_box
output_is_bounded_and_drained cpu_time_is_limited hostile_trees_are_refused_whole
links_swapped_during_a_request_do_not_lead_out no_attack_gets_anywhere no_path_in_a_box_is_a_failure_of_the_sandbox
a_workdir_that_becomes_a_link_leads_nowhere names_of_any_bytes_end_no_box long_paths_end_no_box
a_box_takes_no_kernel_table_from_others
"""
ISOLATED = """
exit_codes_and_signals timeout_ends_the_whole_tree daemons_end_with_their_command cancelled_command_ends
images_are_named_by_content snapshot_and_fork_see_the_same_files memory_of_all_processes_is_limited
streams_stdin_env_and_cwd environment_is_minimal_and_the_same_every_time files_in_and_out file_refusals
memory_of_one_process_is_limited a_server_and_its_client no_way_to_the_hosts_files set_uid_programs_have_no_effect
services_of_the_host_are_out_of_reach shared_memory_ends_with_the_processes_that_use_it
"""


def cases(names: str) -> type:
    """The contract's cases of these names, and no others."""
    return type("Cases", (), {f"test_{name}": getattr(SandboxContract, f"test_{name}") for name in names.split()})


@ordinary
@needs("bwrap")
class TestBubblewrap(cases(EVERYWHERE + ISOLATED)):  # type: ignore[misc]
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: open_mode("bubblewrap", tmp_path / "boxes")


@ordinary
class TestLandlock(cases(EVERYWHERE)):  # type: ignore[misc]
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: open_mode("landlock", tmp_path / "boxes")


def in_mode(mode: str, folder: Path, play: Callable[[Any], Any], files: dict[str, bytes] | None = None) -> Any:
    async def body() -> Any:
        sandboxes = open_mode(mode, folder)
        try:
            image = await sandboxes.add_image(files or {"a": b"1"})
            return await play(await sandboxes.create(BoxSpec(image, limits=Limits())))
        finally:
            await sandboxes.close()

    return asyncio.run(body())


@ordinary
def test_landlock_hides_the_hosts_files_and_spares_its_processes(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    sleeper = subprocess.Popen(["sleep", "60"])

    async def play(box: Any) -> None:
        for path in (tmp_path / "secret", Path(__file__)):
            assert path.read_text()
            assert b"denied" in (await box.exec(["cat", str(path)], timeout=5)).stderr
        assert b"denied" in (await box.exec(["ls", "/var/lib"], timeout=5)).stderr
        assert (await box.exec("echo x >$HOME/x && echo y >$TMPDIR/y && cat a", timeout=5)).stdout == b"1"
        assert (await box.exec(f"echo x >{tmp_path}/new", timeout=5)).code != 0
        await box.exec(f"kill -9 {sleeper.pid}; kill -9 {os.getpid()}", timeout=5)
        assert (await box.exec("exec 3<>/dev/tcp/127.0.0.1/1", timeout=5)).code != 0
        tcp = "import socket; socket.create_connection(('127.0.0.1', 1))"
        assert b"not supported" in (await box.exec(["python", "-c", tcp], timeout=5)).stderr

    try:
        in_mode("landlock", tmp_path / "boxes", play)
        assert sleeper.poll() is None, "signals end at the border"
    finally:
        sleeper.kill()
        sleeper.wait()


@ordinary
@needs("bwrap")
def test_a_link_above_a_mount_point_makes_no_folder_on_the_host(tmp_path: Path) -> None:
    """While bwrap assembles a box, the host's root is at /oldroot."""
    (tmp_path / "host").mkdir()

    async def play(box: Any) -> None:
        await box.exec(f"cd / && mv opt moved && ln -s /oldroot{tmp_path}/host opt", timeout=5)
        assert (await box.exec(["python", "-c", "print(1)"], timeout=5)).stdout == b"1\n"

    in_mode("bubblewrap", tmp_path / "boxes", play)
    assert list((tmp_path / "host").iterdir()) == []


def test_plain_ends_whole_trees_and_leaves_nothing(tmp_path: Path) -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}

    async def play(box: Any) -> None:
        long = f"971.{os.getpid()}"
        cut = await box.exec(f"setsid sleep {long} & (setsid sleep {long} &); sleep {long}", timeout=0.5)
        assert (cut.code, cut.limit, cut.timed_out) == (137, "time", True)
        assert not any(long in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
        process = await box.start(f"read line; echo got $line; setsid sleep {long} & exit 4", timeout=20)
        await process.write(b"it\n")
        said = b""
        while (poll := await process.poll(wait=5)).code is None:
            said += poll.output
        assert (said + poll.output, poll.code) == (b"got it\n", 4)
        assert (await box.exec(["no-such-program"], timeout=5)).code == 127
        (child,) = await box.fork()
        await child.write_file("a", b"2")
        assert (await box.read_file("a"), await child.read_file("a")) == (b"1", b"2")

    in_mode("plain", tmp_path, play)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
    assert list((tmp_path / "owners").iterdir()) == []


def test_what_does_not_isolate_grades_nothing(tmp_path: Path) -> None:
    sandboxes = open_sandboxes(SandboxRecipe(mode="plain"), tmp_path)
    assert Feature.ISOLATED not in sandboxes.features
    with pytest.raises(SandboxUnavailable, match="gradings cannot run") as refused:
        Grader(sandboxes)
    assert "\n" not in str(refused.value)
    asyncio.run(sandboxes.close())


def test_auto_takes_what_isolates_and_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxes = open_mode("auto", tmp_path)
    assert isinstance(sandboxes, EmbeddedSandboxes)
    asyncio.run(sandboxes.close())

    def refuse(root: Path) -> EmbeddedSandboxes:
        raise SandboxUnavailable("the sandbox cannot start (id map): turn the knob")

    monkeypatch.setattr(mode_choice, "EmbeddedSandboxes", refuse)
    usable = {option.name for option in mode_options() if option.usable}
    if "bubblewrap" in usable:
        lesser = open_mode("auto", tmp_path)
        assert isinstance(lesser, FolderSandboxes)
        assert lesser.confinement.name == "bubblewrap"
        asyncio.run(lesser.close())
    monkeypatch.setattr(MODES["bubblewrap"], "refusal", lambda self: "bwrap is not installed")
    with pytest.raises(SandboxUnavailable, match=r"turn the knob.*nothing else here keeps code in"):
        open_mode("auto", tmp_path)
    with pytest.raises(SandboxUnavailable, match="bwrap is not installed"):
        open_mode("bubblewrap", tmp_path)


@pytest.mark.skipif(not ROOT, reason="root alone is refused")
@pytest.mark.parametrize("mode", ["bubblewrap", "landlock"])
def test_root_is_refused(mode: str, tmp_path: Path) -> None:
    """Its boxes would have the host's root within."""
    with pytest.raises(SandboxUnavailable, match="ordinary user"):
        open_mode(mode, tmp_path)


def test_a_layer_of_another_mode_is_refused_where_it_deletes(tmp_path: Path) -> None:
    if not ROOT:
        pytest.skip("only root can make what overlayfs deletes with")
    (tmp_path / "layer").mkdir()
    os.mknod(tmp_path / "layer" / "gone", 0o020644, os.makedev(0, 0))
    with pytest.raises(ImageError, match="embedded backend made it"):
        copy_trees([tmp_path / "layer"], tmp_path / "copy")


CORE = " or ".join(
    (
        "leads_nowhere",
        "above_a_mount",
        "whole_tree",
        "no_attack",
        "hosts_files",
        "snapshot_and_fork",
        "landlock_hides",
        "auto",
    )
)


@for_root
@pytest.mark.parametrize(
    "chosen", [pytest.param(CORE, id="core"), pytest.param("test", id="whole", marks=pytest.mark.soak)]
)
def test_all_of_this_as_an_ordinary_user(chosen: str) -> None:
    pytest_as_nobody("test_modes.py", options=["-k", chosen])
