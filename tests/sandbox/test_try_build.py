"""Builds on trial: bounded, measured, charged to whom they are due, and gone at the end."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.contract.sandbox.support import in_loop

from etude.sandbox import BuildFailed, DiskFull, EmbeddedSandboxes
from etude.sandbox.contract import BoxSpec, BuildTerms, Limits, SandboxError
from etude.sandbox.images.build import builder as building
from etude.sandbox.images.build.builder import Builder
from etude.sandbox.images.build.spending import Spending

TERMS = BuildTerms(Limits(memory_mb=128, cpu_seconds=20, disk_mb=16), 60.0)
LINES = "FROM host\nWORKDIR /made\n"


class Yard:
    """Builds one after the other, and looks what is left."""

    def __init__(self, folder: Path, sandboxes: EmbeddedSandboxes) -> None:
        self.folder, self.context, self.sandboxes = folder, folder / "context", sandboxes
        self.context.mkdir()
        self.failure: BuildFailed | None = None
        self.cpu_seconds = 0.0

    async def build(self, lines: str, terms: BuildTerms = TERMS, command: str = "") -> str:
        """What the command prints in a box of the image."""
        (self.context / "Dockerfile").write_text(LINES + lines)
        async with self.sandboxes.try_build(self.context, terms) as built:
            self.failure, self.cpu_seconds = built.failure, built.share.cpu_seconds
            if built.failure or not command:
                return ""
            box = await built.sandboxes.create(BoxSpec(built.image))
            try:
                return (await box.exec(command, timeout=10)).stdout.decode().strip()
            finally:
                await box.destroy()

    def left(self) -> tuple[set[Path], int, int]:
        own = psutil.Process()
        return set((self.folder / "boxes").rglob("*")), own.num_fds(), len(own.children(recursive=True))

    def failed(self, lines: str, terms: BuildTerms = TERMS) -> BuildFailed:
        asyncio.run(self.build(lines, terms))
        assert self.failure is not None
        return self.failure


@pytest.fixture
def yard(tmp_path: Path, sandboxes: EmbeddedSandboxes) -> Yard:
    return Yard(tmp_path, sandboxes)


@in_loop
async def test_each_is_built_anew_and_leaves_nothing(yard: Yard) -> None:
    lines = "RUN cat /proc/sys/kernel/random/uuid > drawn\n"
    drawn = {await yard.build(lines, command="cat drawn")}
    before = yard.left()
    drawn |= {await yard.build(lines, command="cat drawn") for _ in range(2)}
    await yard.build(f"{lines}RUN exit 1\n")
    assert len(drawn - {""}) == 3
    assert yard.left() == before


@in_loop
async def test_commands_find_variables_that_the_image_does_not_have(yard: Yard) -> None:
    terms = BuildTerms(TERMS.limits, TERMS.seconds, (("TZ", "Asia/Kathmandu"),))
    said = await yard.build("ENV TZ=UTC\nRUN echo $TZ > seen\n", terms, 'cat seen; echo "$TZ"')
    assert said.split() == ["Asia/Kathmandu", "UTC"]


@pytest.mark.parametrize(
    ("lines", "limit", "said"),
    [
        ('RUN echo "No space left on device" >&2; exit 1\n', "", "exit code 1"),
        ("RUN head -c 60000000 /dev/zero > much; exit 1\n", "disk", "more than the 16 MB"),
        ("USER nobody-of-that-name\nRUN true\n", "", "there is no user"),
        ("COPY absent .\n", "", "there is no absent"),
        ("COPIES a b\n", "", "not an instruction"),
    ],
)
def test_what_its_author_did_is_charged(yard: Yard, lines: str, limit: str, said: str) -> None:
    failure = yard.failed(lines)
    assert failure.limit == limit
    assert said in str(failure)


def test_a_file_of_what_to_ignore_that_is_none_is_its_authors(yard: Yard) -> None:
    (yard.context / ".dockerignore").write_bytes(b"\xff\n")
    assert ".dockerignore" in str(yard.failed(""))


def test_time_is_of_all_steps_together(yard: Yard) -> None:
    terms = BuildTerms(TERMS.limits, 1.0)
    assert yard.failed("RUN sleep 0.6\n" * 5, terms).limit == "time"


@pytest.mark.slow
def test_cpu_time_is_of_all_steps_together(yard: Yard) -> None:
    spins = "RUN python3 -c 'import time; all(iter(lambda: time.process_time() < 0.4, False))' step {}\n"
    busy = "".join(map(spins.format, range(12)))  # Of two alike, the second is found.
    terms = BuildTerms(Limits(cpu_seconds=1, disk_mb=16), 200.0)
    assert yard.failed(busy, terms).limit == "cpu"
    assert 0.8 < yard.cpu_seconds < 3.0


def test_what_is_left_bounds_the_next_step() -> None:
    spending = Spending(cpu_seconds=10)
    assert spending.bounded(Limits(cpu_seconds=4)).cpu_seconds == 4
    spending.used_cpu = 7.5
    assert spending.bounded(Limits(cpu_seconds=4)).cpu_seconds == 3
    spending.check()
    spending.used_cpu = 10
    with pytest.raises(BuildFailed, match="processor time"):
        spending.check()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, SandboxError),
        (errno.ENOSPC, SandboxError),
        (errno.ENOENT, BuildFailed),
        (errno.ENAMETOOLONG, BuildFailed),
    ],
)
def test_faults_of_the_host_are_nobodys(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    async def fails(*_: object) -> None:
        raise OSError(number, "broken")

    monkeypatch.setattr(Builder, "_copy", fails)
    if kind is BuildFailed:
        assert "COPY" in str(yard.failed("COPY . .\n"))
        return
    with pytest.raises(SandboxError, match="COPY") as caught:
        yard.failed("COPY . .\n")
    assert not isinstance(caught.value, BuildFailed)


def test_on_a_full_host_no_step_is_charged_but_one_that_filled_its_own_disk(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=0), rmtree=shutil.rmtree)
    monkeypatch.setattr(building, "shutil", full)
    with pytest.raises(DiskFull, match="is full"):
        yard.failed("RUN exit 1\n")
    assert yard.failed("RUN head -c 60000000 /dev/zero > much; exit 1\n").limit == "disk"
