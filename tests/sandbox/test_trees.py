from __future__ import annotations

import io
import tarfile
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop

from etude.sandbox import BoxSpec, EmbeddedSandboxes, Feature, RequestRefused
from etude.sandbox.images.build.members import members_of_tar
from etude.sandbox.tars import Member, Tar, pack

steps = st.sampled_from(["a", "b", "c", ".", "..", "", "long" * 70, "odd\udcff"])
paths = st.lists(steps, min_size=1, max_size=4).map("/".join)
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, b"9"])
members = st.tuples(paths, kinds, paths, st.binary(max_size=20), st.integers(0, 70_000))
BOUNDS = {"max_bytes": 60, "max_files": 6}


def written(entries: list[tuple[str, bytes, str, bytes, int]]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", errors="surrogateescape") as archive:
        for name, kind, goal, content, uid in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.uid = kind, goal, uid
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def one_line(refusal: Exception) -> None:
    assert "\n" not in str(refusal)


def judged(data: bytes) -> Tar | None:
    """None for one that was refused, in one line."""
    try:
        return Tar(data, **BOUNDS)
    except RequestRefused as refusal:
        one_line(refusal)
        return None


@given(st.lists(members, max_size=8))
@settings(max_examples=120)
def test_what_is_judged_good_stays_below_and_within_bounds(entries: list[tuple[str, bytes, str, bytes, int]]) -> None:
    tar = judged(written(entries))
    if tar is None:
        return
    files: set[str] = set()
    others: set[str] = set()
    for member in tar.members:
        parts = member.name.split("/")
        assert not {"", ".", ".."} & set(parts)
        above = {"/".join(parts[:count]) for count in range(1, len(parts))}
        assert not above & (files | others)
        assert member.kind != "hard" or member.goal in files
        if member.kind != "folder":
            (files if member.kind in ("file", "hard") else others).add(member.name)
            (others if member.kind in ("file", "hard") else files).discard(member.name)
        assert 0 <= member.uid <= 65535
    assert len(tar.members) <= BOUNDS["max_files"]
    assert sum(member.size for member in tar.members) <= BOUNDS["max_bytes"]
    sent = [member for batch in tar.batches(10) for member in batch]
    assert [member.name for member in sent[: len(tar.members)]] == [member.name for member in tar.members]
    assert len(b"".join(tar.contents(batch) for batch in tar.batches(10))) == sum(m.size for m in tar.members)


@given(st.data())
@settings(max_examples=80)
def test_a_damaged_tar_is_judged_or_refused(data: st.DataObject) -> None:
    good = bytearray(written([("a", tarfile.DIRTYPE, "", b"", 0), ("a/f", tarfile.REGTYPE, "", b"content", 0)]))
    for _ in range(data.draw(st.integers(1, 6))):
        good[data.draw(st.integers(0, 2000))] = data.draw(st.integers(0, 255))
    # Its checksums made right again, so that the damage itself is judged.
    for at in (0, 512):
        header = good[at : at + 512]
        header[148:156] = b" " * 8
        good[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    tar = judged(bytes(good[: data.draw(st.integers(600, len(good)))]))
    if tar is not None:
        try:
            for batch in tar.batches(10):
                tar.contents(batch)
        except RequestRefused:
            pass


def test_a_chain_of_long_names_does_not_exhaust_the_stack() -> None:
    link = tarfile.TarInfo("././@LongLink")
    link.type, link.size = tarfile.GNUTYPE_LONGNAME, 2
    block = link.tobuf(tarfile.GNU_FORMAT) + b"x\0".ljust(512, b"\0")
    with pytest.raises(RequestRefused):
        Tar(block * 3000, max_bytes=1 << 24, max_files=10)


def test_a_negative_size_does_not_go_round_for_ever() -> None:
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (-512 & (1 << 96) - 1).to_bytes(12, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(RequestRefused):
        Tar(bytes(header) * 2, **BOUNDS)


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.binary(max_size=9)), max_size=6, unique_by=lambda item: item[0])
)
def test_what_is_packed_is_judged_the_same(entries: list[tuple[str, bytes]]) -> None:
    given_members = [Member(name, "file", 0o640, 7, 8, 99, len(content)) for name, content in entries]
    tar = Tar(pack(given_members, b"".join(content for _, content in entries)), **BOUNDS)
    assert [replace(member, source=None) for member in tar.members] == given_members
    assert tar.contents(tar.members) == b"".join(content for _, content in entries)


@in_loop
async def test_owners_are_the_tars_where_the_images_user_is_root(sandboxes: EmbeddedSandboxes) -> None:
    image = sandboxes.store.image(await sandboxes.add_image({"x": b""}))
    root = sandboxes.store.record(replace(image, config=replace(image.config, user="root")))
    box = await sandboxes.create(BoxSpec(root))
    tree = written([("d", tarfile.DIRTYPE, "", b"", 4321), ("d/f", tarfile.REGTYPE, "", b"x", 1001)])
    if Feature.ROOT_USER not in sandboxes.features:
        return
    await box.write_tree("/srv", tree)
    owners = await box.exec("id -u; stat -c %u /srv/d /srv/d/f", timeout=5)
    assert owners.stdout == b"0\n4321\n1001\n"
    bad = sandboxes.store.record(replace(image, config=replace(image.config, user="nosuchuser")))
    with pytest.raises(RequestRefused, match="no user"):
        await sandboxes.create(BoxSpec(bad))


def test_a_sparse_file_is_refused() -> None:
    """1,536 bytes would stand for any number of zeros, all of them in memory at once."""
    info = tarfile.TarInfo("a")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 27), "GNU.sparse.name": "a"}
    data = info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)
    with pytest.raises(RequestRefused, match="a is a sparse file"):
        Tar(data, max_bytes=1 << 30, max_files=10)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive, pytest.raises(ValueError, match="a is a sparse file"):
        list(members_of_tar(archive, "x.tar"))
