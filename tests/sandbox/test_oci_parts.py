"""The OCI backend's parts that need no engine."""

from __future__ import annotations

import asyncio
import io
import os
import struct
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox import Capability, RequestRefused, SandboxError
from etude.sandbox.oci import runtimes
from etude.sandbox.oci.attachment import Attachment
from etude.sandbox.oci.init_bundle import BUNDLE_FOLDER, INIT, write_init_bundle
from etude.sandbox.oci.owner import Owner
from etude.sandbox.oci.tars import is_archive, tar_of_files

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\n"


class Heard(asyncio.Protocol):
    def __init__(self) -> None:
        self.data, self.connected = b"", False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connected = True

    def data_received(self, data: bytes) -> None:
        self.data += data


async def attached(*pieces: bytes) -> tuple[Heard, Attachment, str]:
    """What the channel hears when an engine sends these pieces, one after the other; and the error, if any."""

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    heard, error = Heard(), ""
    attachment = Attachment("c", heard)
    ended = asyncio.get_running_loop().create_future()
    heard.connection_lost = lambda _: ended.set_result(None)  # type: ignore[method-assign]
    async with server:
        await asyncio.get_running_loop().create_connection(lambda: attachment, *server.sockets[0].getsockname()[:2])
        try:
            await attachment.upgrade("/attach")
        except SandboxError as refusal:
            error = str(refusal)
        await ended
    return heard, attachment, error


frames = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=300)), max_size=6)


@given(frames, st.data())
def test_streams_survive_any_cutting(frames: list[tuple[int, bytes]], data: st.DataObject) -> None:
    stream = UPGRADED + b"".join(struct.pack("!BxxxI", number, len(text)) + text for number, text in frames)
    transport, heard = asyncio.Transport(), Heard()

    async def feed() -> Attachment:
        attachment = Attachment("c", heard)
        attachment.connection_made(transport)
        rest = stream
        while rest:
            size = data.draw(st.integers(1, len(rest)))
            attachment.data_received(rest[:size])
            rest = rest[size:]
        return attachment

    attachment = asyncio.run(feed())
    assert heard.connected
    assert heard.data == b"".join(text for number, text in frames if number == 1)
    said = b"".join(text for number, text in frames if number == 2)
    assert attachment.stderr_tail == said.decode(errors="replace").strip()


def test_refused_or_broken_streams_are_named() -> None:
    heard, _, error = asyncio.run(attached(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n", b"no such c"))
    assert "404" in error
    assert not heard.connected
    _, _, error = asyncio.run(attached(b"HTTP/1.1"))
    assert "closed" in error
    heard, _, error = asyncio.run(attached(UPGRADED, struct.pack("!BxxxI", 1, 2) + b"ok"))
    assert (heard.data, error) == (b"ok", "")


def test_owners_are_judged_only_where_we_can_know() -> None:
    owner = Owner.new()
    assert Owner.parse(str(owner)) == owner
    assert not owner.dead()
    assert replace(owner, start=owner.start - 100).dead()
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert replace(owner, pid=gone.pid).dead()
    boot, _, table = owner.boot.partition(":")
    assert replace(owner, boot=f"another:{table}").dead()
    assert not replace(owner, boot=f"{boot}:1", pid=gone.pid).dead()
    assert not replace(owner, machine="another", pid=gone.pid).dead()
    for text in ("", "a|b|c|d|e", "no owner"):
        with pytest.raises(ValueError, match=r"values|literal"):
            Owner.parse(text)


def test_files_of_an_image_come_after_their_folders_and_belong_to_one_user() -> None:
    data = tar_of_files({"b/c/d": b"1", "./a": b"#!/bin/sh\n"}, PurePosixPath("/home/agent/w"), 1000)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = {member.name: member for member in tar}
    assert list(members) == [f"home/agent/w{name}" for name in ("", "/a", "/b", "/b/c", "/b/c/d")]
    assert {member.uid for member in members.values()} == {1000}
    assert members["home/agent/w/a"].mode == 0o755
    for names in (["/a"], ["../a"], ["a", "a/b"], [""], ["a\0"]):
        with pytest.raises(RequestRefused):
            tar_of_files(dict.fromkeys(names, b""), PurePosixPath("/work"), 0)


def test_nothing_follows_the_end_mark_of_a_tar() -> None:
    """What podman has still to pass on when its unpacker has ended makes it refuse the tar."""
    data = tar_of_files({"a": b"1" * 700}, PurePosixPath("/work"), 1000)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        last = tar.getmembers()[-1]
    assert len(data) == last.offset_data + 2 * tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE


def test_archives_are_told_from_root_file_systems(tmp_path: Path) -> None:
    for name, expected in {
        "manifest.json": True,
        "oci-layout": True,
        "etc/manifest.json": False,
        "bin/sh": False,
    }.items():
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo(name))
        assert is_archive(tmp_path / "x.tar") is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root directory")
def test_what_is_carried_runs_where_there_is_nothing_else(tmp_path: Path) -> None:
    tar = write_init_bundle(tmp_path / "kept")
    assert write_init_bundle(tmp_path / "kept") == tar
    home = tmp_path / "root" / BUNDLE_FOLDER[1:]
    home.mkdir(parents=True)
    with tarfile.open(tar) as file:
        file.extractall(home)  # It is ours, and Python 3.11.2 knows no filters.
    program = INIT[: INIT.index("-c") + 1]
    look = "import etude.sandbox.inside.contained, sys; print(sys.prefix, sys.flags.utf8_mode)"
    done = subprocess.run(
        [*program, look], preexec_fn=lambda: os.chroot(tmp_path / "root"), capture_output=True, check=False, env={}
    )
    assert done.stdout == f"{BUNDLE_FOLDER} 1\n".encode(), done.stderr


@pytest.mark.parametrize(
    ("runtime", "has"),
    [
        ("", set()),
        ("crun", set()),
        ("runsc", {Capability.OWN_KERNEL}),
        ("runsc-kvm", {Capability.OWN_KERNEL}),
        ("io.containerd.kata.v2", {Capability.OWN_KERNEL, Capability.OWN_MACHINE}),
        ("kata-fc", {Capability.OWN_KERNEL, Capability.OWN_MACHINE}),
    ],
)
def test_runtimes_with_a_kernel_of_their_own_are_known_by_name(runtime: str, has: set[Capability]) -> None:
    assert runtimes.capabilities_of(runtime) == has


def test_virtual_machines_are_refused_without_kvm(tmp_path: Path) -> None:
    (tmp_path / "kvm").touch()
    here, absent = str(tmp_path / "kvm"), str(tmp_path / "no-kvm")
    for runtime in ("kata", "kata-fc", "firecracker"):
        assert runtimes.refusal(runtime, local=True, kvm=here) == ""
        assert runtimes.refusal(runtime, local=False, kvm=absent) == ""
        refused = runtimes.refusal(runtime, local=True, kvm=absent)
        assert f"sandbox.runtime = '{runtime}'" in refused
        assert f"no {absent}" in refused
        assert "\n" not in refused
    for runtime in ("", "runc", "runsc"):
        assert runtimes.refusal(runtime, local=True, kvm=absent) == ""
