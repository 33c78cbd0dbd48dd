"""Whole folders copied in and out as tars, and tars that must be refused before anything is written."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
from collections.abc import Callable

import pytest
from tests.contract.sandbox.support import FILES, in_a_box, ok

from etude.sandbox import Box, BoxSpec, Limits, RequestRefused, SandboxError, Sandboxes, SandboxLost


def tar_of(*members: tuple[str, bytes | str], **more: int) -> bytes:
    """Make a tar. (name, bytes) is a file, (name, str) a symbolic link to it, (name/, anything) a folder."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name.rstrip("/") if len(name) > 1 else name)
            info.mode, info.mtime = more.get("mode", 0o644), 1_000_000_000
            info.uid, info.gid = more.get("uid", 0), more.get("gid", 0)
            if name.endswith("/") and len(name) > 1:
                info.type, info.mode = tarfile.DIRTYPE, more.get("folder", 0o755)
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return target.getvalue()


def special(kind: bytes, **fields: object) -> bytes:
    """A tar with a regular file, then a member of the given kind."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        first, other = tarfile.TarInfo("first"), tarfile.TarInfo("x")
        first.size, other.type = 1, kind
        for field, value in fields.items():
            setattr(other, field, value)
        archive.addfile(first, io.BytesIO(b"1"))
        archive.addfile(other)
    return target.getvalue()


def one_of_a_terabyte() -> bytes:
    info = tarfile.TarInfo("x")
    info.size = 1 << 40
    return info.tobuf(tarfile.GNU_FORMAT)


def members_of(tar: bytes, *, top: bool = False) -> list[tuple[object, ...]]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return [(m.name, m.mode, m.mtime, m.type, m.linkname, m.size) for m in archive if top or m.name != "."]


LOOK = "find . -mindepth 1 -printf '%P %y %m %l %T@\\n' | sort; find . -type f -exec md5sum {} + | sort"


class TreeCases:
    @in_a_box()
    async def test_a_tree_goes_out_and_in_again(self, sandboxes: Sandboxes, image: str) -> None:
        build = (
            "mkdir -p t/a/b t/empty; cd t; echo one >a/one; echo two >a/b/two; ln a/one a/b/hard; ln -s ../a/one link; "
            "ln -s /nowhere dangling; ln -s a folder-link; chmod 751 a/b; chmod 600 a/b/two; chmod 555 empty; "
            "touch 'odd name' \"$(printf '\\377')\"; head -c 500000 /dev/urandom >blob; "
            "find . -exec touch -h -d @1234567890 {} +"
        )
        box, other = [await sandboxes.create(BoxSpec(image)) for _ in range(2)]
        ok(await box.exec(build, timeout=60))
        tar = await box.read_tree("t")
        before = (await box.exec(LOOK, timeout=10, cwd="t")).stdout
        assert len(before.splitlines()) == 12 + 6
        for _ in range(2):
            await other.write_tree("deep/t", tar)
            assert (await other.exec(LOOK, timeout=10, cwd="deep/t")).stdout == before
            assert members_of(await other.read_tree("deep/t")) == members_of(tar)
        assert ok(await other.exec("stat -c %h deep/t/a/one", timeout=5)) == "2\n"

    @in_a_box()
    async def test_a_tar_of_a_folder_begins_with_it_and_a_file_comes_alone(self, box: Box) -> None:
        ok(await box.exec("mkdir -m 750 d; echo x >d/f", timeout=5))
        names = [(name, mode) for name, mode, *_ in members_of(await box.read_tree("d"), top=True)]
        assert names == [(".", 0o750), ("f", 0o644)]
        assert [name for name, *_ in members_of(await box.read_tree("calc.py"))] == ["calc.py"]

    @in_a_box()
    async def test_a_tree_is_the_agents(self, box: Box) -> None:
        await box.write_tree(".", tar_of(("d/", b""), ("d/f", b"x"), ("run", b"#!/bin/sh\necho ran\n"), mode=0o755))
        assert ok(await box.exec("stat -c %U d d/f; echo more >>d/f; ./run", timeout=5)) == "agent\nagent\nran\n"
        await box.write_tree("/home/agent/in/side", tar_of(("f", b"y")))
        assert ok(await box.exec("cat ~/in/side/f", timeout=5)) == "y"
        with pytest.raises((SandboxError, PermissionError)):
            await box.write_tree("/usr/share/new", tar_of(("f", b"y")))

    @in_a_box()
    async def test_files_are_replaced_and_folders_merged(self, box: Box) -> None:
        ok(
            await box.exec(
                "mkdir d; echo old >d/old; echo target >target; ln -s ../target d/link; ln -s target l", timeout=5
            )
        )
        await box.write_tree(".", tar_of(("d/", b""), ("d/new", b"new"), ("d/link", b"file now"), ("l", "run.sh")))
        assert await box.read_file("target") == b"target\n"
        assert await box.read_file("d/link") == b"file now"
        assert await box.read_file("d/old") == b"old\n"
        assert ok(await box.exec("readlink l", timeout=5)) == "run.sh\n"

    @in_a_box()
    async def test_hostile_trees_are_refused_whole(self, box: Box) -> None:
        double = tar_of(("first", b"1"), ("a", b"file"), ("a/b", b"below a file"))
        hostile: dict[str, bytes] = {
            "a name above": tar_of(("first", b"1"), ("../up", b"x")),
            "a name above, hidden": tar_of(("first", b"1"), ("a/b/../../../up", b"x")),
            "an absolute name": tar_of(("first", b"1"), ("/work/up", b"x")),
            "below its own relative link": tar_of(("first", b"1"), ("l", "../.."), ("l/tmp/x", b"x")),
            "below its own link": tar_of(("first", b"1"), ("l", "/tmp"), ("l/x", b"x")),
            "a link in the place of a folder": tar_of(("first", b"1"), ("d/x", b"1"), ("d", "/tmp")),
            "below a file": double,
            "a character device": special(tarfile.CHRTYPE, devmajor=1, devminor=3),
            "a block device": special(tarfile.BLKTYPE, devmajor=8, devminor=0),
            "a pipe": special(tarfile.FIFOTYPE),
            "a hard link to elsewhere": special(tarfile.LNKTYPE, linkname="/etc/passwd"),
            "a hard link above": special(tarfile.LNKTYPE, linkname="../../etc/passwd"),
            "a hard link to nothing before it": special(tarfile.LNKTYPE, linkname="later"),
            "an id that no box has": tar_of(("first", b"1"), ("x", b"x"), uid=100_000),
            "a long name": tar_of(("first", b"1"), ("x" * 300, b"x")),
            "a gzip": b"\x1f\x8b\x08" + bytes(600),
            "no tar": b"hello" * 300,
            "nothing": b"",
            "a size without end": one_of_a_terabyte(),
            "half a tar": tar_of(("first", b"1"), ("x", bytes(5000)))[:3000],
        }
        for what, tar in hostile.items():
            with pytest.raises(RequestRefused) as refused:
                await box.write_tree("in", tar)
            assert "\n" not in str(refused.value), what
            assert (await box.exec("ls in/first ../up /tmp/x", timeout=5)).stdout == b"", what

    @in_a_box(Limits(file_mb=8))
    async def test_trees_have_bounds(self, box: Box) -> None:
        many = tar_of(*((f"f{number}", b"") for number in range(30)))
        large = tar_of(*((f"f{number}", bytes(10_000)) for number in range(30)))
        sparse = io.BytesIO()
        with tarfile.open(fileobj=sparse, mode="w", format=tarfile.PAX_FORMAT) as archive:
            info = tarfile.TarInfo("GNUSparseFile.0/bomb")
            info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "bomb",
                                "GNU.sparse.realsize": str(1 << 40)}  # fmt: skip
            info.size = 512
            archive.addfile(info, io.BytesIO(b"1\n0\n0\n".ljust(512, b"\0")))
        refusals: list[Callable[[], object]] = [
            lambda: box.write_tree("in", many, max_files=29),
            lambda: box.write_tree("in", large, max_bytes=299_999),
            lambda: box.write_tree("in", sparse.getvalue()),
            lambda: box.write_tree("in", tar_of(("first", b"1"), ("big", bytes(9 << 20)))),
        ]
        for refusal in refusals:
            with pytest.raises(RequestRefused):
                await refusal()  # type: ignore[misc]
        assert (await box.exec("ls in", timeout=5)).stdout == b""
        await box.write_tree("in", many, max_files=30)
        await box.write_tree("in", large, max_bytes=300_000)
        assert len(await box.read_tree("in", max_files=31, max_bytes=300_000)) > 300_000
        for files, size in ((29, 300_000), (31, 299_999)):
            with pytest.raises(RequestRefused):
                await box.read_tree("in", max_files=files, max_bytes=size)
        with pytest.raises(FileNotFoundError):
            await box.read_tree("nothing")

    @in_a_box()
    async def test_links_in_the_box_lead_no_tree_away(self, box: Box) -> None:
        ok(await box.exec("mkdir in /tmp/away; ln -s /tmp/away in/l; ln -s in/l out; ln -s /tmp/away abs", timeout=5))
        for name in ("l/x", "l/deep/x"):
            with pytest.raises(RequestRefused):
                await box.write_tree("in", tar_of(("first", b"1"), (name, b"x")))
        with pytest.raises(RequestRefused):
            await box.write_tree("in", tar_of(("first", b"1"), ("l/", b"")))
        for path in ("out", "abs", "../tmp", "abs/deep"):
            with pytest.raises(RequestRefused):
                await box.write_tree(path, tar_of(("x", b"x")))
            with pytest.raises((RequestRefused, FileNotFoundError)):
                await box.read_tree(path)
        assert (await box.exec("ls /tmp/away; ls in/first", timeout=5)).stdout == b""

    @in_a_box(Limits())
    async def test_links_that_change_meanwhile_lead_no_tree_away(self, box: Box) -> None:
        swap = (
            "mkdir -p in d /tmp/away; while :; do mv d in/d; mv in/d d; ln -s /tmp/away in/d; rm in/d; done 2>/dev/null"
        )
        tree = tar_of(*((f"d/{number}", b"x") for number in range(40)))
        swapping = asyncio.create_task(box.exec(swap, timeout=1.5))
        while not swapping.done():
            with contextlib.suppress(SandboxError, OSError):
                await box.write_tree("in", tree)
        assert (await swapping).timed_out
        assert ok(await box.exec("ls /tmp/away", timeout=5)) == ""

    @in_a_box()
    async def test_folders_nested_without_end_end_no_box(self, box: Box) -> None:
        dig = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
        ok(await box.exec(["python3", "-c", dig], timeout=30))
        for look in (box.list_files, box.read_tree):
            with pytest.raises(SandboxError) as caught:
                await look(".")
            assert not isinstance(caught.value, SandboxLost)
        assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    @in_a_box(Limits(disk_mb=64))
    async def test_a_large_tree(self, box: Box) -> None:
        names = [f"d{number % 40}/f{number}" for number in range(1500)]
        tree = tar_of(*((name, name.encode() * 500) for name in names))
        await box.write_tree("big", tree)
        assert ok(await box.exec("find big -type f | wc -l; cat big/d7/f1007 | md5sum", timeout=20)).startswith(
            "1500\n"
        )
        with tarfile.open(fileobj=io.BytesIO(await box.read_tree("big"))) as back:
            assert sorted(member.name for member in back if member.isreg()) == sorted(names)
            taken = back.extractfile("d7/f1007")
            assert taken is not None
            assert taken.read() == b"d7/f1007" * 500
        assert set(FILES) <= set(await box.list_files())
