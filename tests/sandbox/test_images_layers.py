"""Layers from tars: what a box shows is what the layers mean, and nothing gets out of the target folder."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.sandbox.layer_model import Entry, Refused, Tree, apply_layers, to_tar
from tests.sandbox.store_process_work import image_of_tars

from etude.sandbox import BoxSpec, EmbeddedSandboxes, Feature, ImageError
from etude.sandbox.images.ids import IdRange
from etude.sandbox.images.image import HOST, Image, ImageConfig
from etude.sandbox.images.layers import DEFAULT_BOUNDS, Bounds, Unpacker
from etude.sandbox.images.oci import chain_names, quiet, unpack_stream
from etude.sandbox.images.stack import Stack

TOP = "t"
LOOK = """
import json, os, stat
kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
seen = {}
def look(folder):
    for name in os.listdir("/" + folder):
        path = f"{folder}/{name}"
        info = os.lstat("/" + path)
        kind = kinds[stat.S_IFMT(info.st_mode)]
        text = os.readlink("/" + path) if kind == "link" else open("/" + path).read() if kind == "file" else ""
        mode = 0 if kind == "link" else stat.S_IMODE(info.st_mode)
        seen[path] = [kind, text, mode, info.st_uid, int(info.st_mtime)]
        if kind == "folder":
            look(path)
if os.path.isdir("/t"):
    look("t")
print(json.dumps(seen))
"""

paths = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(lambda parts: "/".join([TOP, *parts]))
entries = st.builds(
    Entry,
    st.sampled_from(["file", "file", "folder", "folder", "link", "hard", "whiteout", "whiteout", "opaque"]),
    paths,
    paths,
    st.sampled_from([0o644, 0o755, 0o4755, 0o1777]),
    st.sampled_from([0, 1000, 33]),
    st.integers(0, 2_000_000_000),
)
sequences = st.lists(st.lists(entries, max_size=7), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSandboxes]:
    sandboxes = EmbeddedSandboxes(tmp_path_factory.mktemp("boxes"))
    yield sandboxes
    asyncio.run(sandboxes.close())


def add_layers(sandboxes: EmbeddedSandboxes, tars: list[bytes]) -> str:
    """An image of the host's folders and these layers over them."""
    made = sandboxes.store.image(image_of_tars(sandboxes.store, tars))
    return sandboxes.store.record(Image(HOST, made.layers, ImageConfig()))


def seen(sandboxes: EmbeddedSandboxes, image: str) -> dict[str, list[object]]:
    user = "root" if Feature.ROOT_USER in sandboxes.features else ""

    async def look() -> dict[str, list[object]]:
        box = await sandboxes.create(BoxSpec(image))
        try:
            result = await box.exec(["python3", "-c", LOOK], timeout=20, user=user)
            assert result.code == 0, result
            return dict(json.loads(result.stdout))
        finally:
            await box.destroy()

    return asyncio.run(look())


def expected(tree: Tree, *, owners: bool) -> dict[str, list[object]]:
    """Links have no mode. Without a range of ids all is the agent's, and each folder open to it."""
    shown: dict[str, list[object]] = {}
    for path, node in tree.items():
        mode = {"link": 0, "file": node.mode, "folder": node.mode if owners else node.mode | 0o700}[node.kind]
        shown[path] = [node.kind, node.text, mode, node.owner if owners else 1000, node.time]
    shown.pop(TOP, None)
    return shown


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(sequences)
@example([[Entry("file", "t/a/b", "x")], [Entry("whiteout", "t/a"), Entry("file", "t/a/a", "y")]])
@example([[Entry("folder", "t/a", mode=0o1777, owner=33)], [Entry("file", "t/a/b", "parents keep their facts")]])
@example([[Entry("file", "t/a/b", "x")], [Entry("opaque", "t/a"), Entry("whiteout", "t/a/b")], [Entry("opaque", "t")]])
@example([[Entry("file", "t/a/b", "x")], [Entry("hard", "t/b", "t/a/b"), Entry("whiteout", "t/a")]])
def test_a_box_shows_what_the_layers_mean(backend: EmbeddedSandboxes, layers: list[list[Entry]]) -> None:
    tars = [to_tar(layer) for layer in layers]
    try:
        meaning = apply_layers(layers)
    except Refused:
        with pytest.raises(ImageError, match=r"layer sha256:\w+: member 't/"):
            add_layers(backend, tars)
        return
    owners = Feature.ROOT_USER in backend.features
    assert seen(backend, add_layers(backend, tars)) == expected(meaning, owners=owners)


# -- what is refused, left out, or bounded


def unpack(tmp_path: Path, data: bytes, *, ids: IdRange | None = None, bounds: Bounds = DEFAULT_BOUNDS) -> Unpacker:
    unpacker = Unpacker("x", tmp_path / f"layer-{next(_NUMBERS)}", Stack(()), ids, bounds)
    unpack_stream(io.BytesIO(data), unpacker, quiet)
    return unpacker


_NUMBERS = itertools.count()


def tar_of(*members: tarfile.TarInfo, contents: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info in members:
            info.size = len(contents) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(contents))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, goal: str = "", **facts: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, goal
    for key, value in facts.items():
        setattr(info, key, value)
    return info


LINK, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([member("/etc/passwd")], "names '/etc/passwd'; expected a path below the root"),
        ([member("a/../../out")], "without '..'"),
        ([member("a", LINK, "/tmp"), member("a/out")], "member 'a/out' would be written through a"),
        ([member("a", LINK, ".."), member("a/b/out")], "through a/b"),
        ([member("a"), member("a/b")], "through a"),
        ([member("a", HARD, "/etc/shadow")], "names '/etc/shadow'"),
        ([member("a", HARD, "../out")], "names '../out'"),
        ([member("s", LINK, "/etc"), member("a", HARD, "s/shadow")], "leads through a link or file"),
        ([member("d", FOLDER), member("a", HARD, "d")], "hard link to the folder d"),
        ([member("a", HARD, "nowhere")], "which is in no layer"),
        ([member("x/.wh.")], "removes no name that can be"),
        ([member("x/.wh...")], "removes no name that can be"),
        ([member(".wh.x/y")], "is for removals alone"),
        ([member("a", uid=1 << 31)], "belongs to user 2147483648"),
        ([member("a" * 300)], "cannot be a file's name"),
        ([member("/".join("d" * 400))], "400 folders deep"),
        ([member("a", tarfile.CONTTYPE[:0] + b"V")], "of a kind"),
    ],
)
def test_members_that_no_image_needs_are_refused(tmp_path: Path, members: list[tarfile.TarInfo], says: str) -> None:
    outside = Path("/tmp/out")
    before = outside.lstat() if os.path.lexists(outside) else None
    with pytest.raises(ImageError, match=says) as caught:
        unpack(tmp_path, tar_of(*members, contents=b"evil"))
    assert str(caught.value).startswith("layer x: member ")
    assert not (tmp_path / "out").exists()
    assert before == (outside.lstat() if os.path.lexists(outside) else None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has ids to give away")
def test_owners_are_those_of_the_boxes_range(tmp_path: Path) -> None:
    ids = IdRange(2_000_000_000, 65_536)
    made = unpack(tmp_path, tar_of(member("a", uid=33, gid=4), member("d/b", LINK, "a", uid=1000)), ids=ids)
    found = {name: (made.target / name).lstat() for name in ("a", "d", "d/b", "")}
    assert {name: (info.st_uid - ids.first, info.st_gid - ids.first) for name, info in found.items()} == {
        "a": (33, 4),
        "d": (0, 0),
        "d/b": (1000, 0),
        "": (0, 0),
    }
    with pytest.raises(ImageError, match="boxes have ids below 65536"):
        unpack(tmp_path, tar_of(member("a", uid=65_536)), ids=ids)


def test_what_boxes_do_not_get_is_counted(tmp_path: Path) -> None:
    program = member("sudo", mode=0o6755)
    capable = member(
        "ping", pax_headers={"SCHILY.xattr.security.capability": "x", "SCHILY.xattr.user.overlay.opaque": "y"}
    )
    made = unpack(tmp_path, tar_of(program, capable, member("null", tarfile.CHRTYPE), member("pipe", tarfile.FIFOTYPE)))
    assert made.skipped == {"set-uid or set-gid bit": 1, "capability": 1, "extended attribute": 1, "device": 1}
    assert (made.target / "sudo").stat().st_mode & 0o7777 == 0o755
    assert os.listxattr(made.target / "ping") == []
    assert not (made.target / "null").exists()
    assert (made.target / "pipe").is_fifo()


def test_small_archives_cannot_ask_for_much(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="beyond 1000 bytes"):
        unpack(tmp_path, tar_of(member("a"), contents=b"x" * 1001), bounds=Bounds(bytes=1000))
    with pytest.raises(ImageError, match="one of more than 3 members"):
        unpack(tmp_path, tar_of(*(member(str(n)) for n in range(4))), bounds=Bounds(members=3))
    with pytest.raises(ImageError, match=r"grows beyond .* decompressed"):
        unpack(tmp_path, gzip.compress(b"\0" * 10_000_000), bounds=Bounds(bytes=1000))
    absurd = bytearray(tar_of(member("a")))
    header = tarfile.TarInfo("a")
    header.size = 1 << 50
    absurd[:512] = header.tobuf(tarfile.GNU_FORMAT)[:512]
    with pytest.raises(ImageError, match="beyond"):
        unpack(tmp_path, bytes(absurd))
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    with pytest.raises(ImageError, match="is damaged"):
        unpack(tmp_path, header.tobuf(tarfile.GNU_FORMAT))


def test_holes_stay_holes(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with (tmp_path / "root/big").open("wb") as file:
        file.write(b"begin")
        file.seek(300 << 20)
        file.write(b"middle")
        file.truncate(600 << 20)
    for style in ("gnu", "pax"):
        command = ["tar", "-C", str(tmp_path / "root"), f"--format={style}", "-Scf", "-", "big"]
        data = subprocess.run(command, capture_output=True, check=True).stdout
        made = (unpack(tmp_path, data).target / "big").stat()
        assert made.st_size == 600 << 20
        assert made.st_blocks * 512 < 1 << 20
        with (tmp_path / f"layer-{next(_NUMBERS) - 1}" / "big").open("rb") as file:
            assert file.read(5) == b"begin"
            file.seek(300 << 20)
            assert file.read(7) == b"middle\0"


@pytest.mark.parametrize("style", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_odd_names_survive(tmp_path: Path, style: int) -> None:
    name = "/".join(["d" * 200, "ü€" * 30, "with\nline", "x"])
    made = unpack(tmp_path, to_tar([Entry("file", name, "here"), Entry("link", "l", "t" * 150)], style))
    assert (made.target / name).read_text() == "here"
    assert str((made.target / "l").readlink()) == "t" * 150
    raw = tar_of(member("raw-\udcff"))
    assert [os.fsencode(path.name) for path in unpack(tmp_path, raw).target.iterdir()] == [b"raw-\xff"]


GOOD = to_tar([Entry("folder", "a"), Entry("file", "a/" + "n" * 120, "x" * 700), Entry("link", "l", "a")])


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=12))
def test_damage_is_an_image_error_or_nothing(tmp_path: Path, at: int, noise: bytes) -> None:
    """Whatever bytes come, no other exception leaves, and nothing but the layer's folder is written."""
    before = {path.name for path in tmp_path.parent.iterdir()}
    with contextlib.suppress(ImageError):
        unpack(tmp_path, GOOD[:at] + noise + GOOD[at + len(noise) :], bounds=Bounds(bytes=1 << 20))
    assert {path.name for path in tmp_path.parent.iterdir()} == before


@pytest.mark.parametrize("cut", [100, 512, 700, 1024, 2000, 2600])
def test_a_tar_that_ends_early_is_damaged(tmp_path: Path, cut: int) -> None:
    with pytest.raises(ImageError, match="layer x is damaged"):
        unpack(tmp_path, GOOD[:cut])


def test_names_of_chains_are_those_of_the_format() -> None:
    """The lowest layer's name is its diff id; each further one hashes the chain below and its own."""
    first, second = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
    chain = hashlib.sha256(f"{first} {second}".encode()).hexdigest()
    assert chain_names([first, second]) == ["1" * 64, chain]


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("time", ["inf", "-inf", "nan", "1e300", "-1e300", "9" * 40, str(2**41)])
def test_a_time_that_no_file_can_have(tmp_path: Path, kind: bytes, time: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a")
        info.type, info.linkname, info.pax_headers = kind, "b", {"mtime": time}
        tar.addfile(info)
    unpacker = Unpacker("x", tmp_path / "layer", Stack(()), None)
    with pytest.raises(ImageError, match=r"layer x: member 'a' was modified at .*, which is no time"):
        unpack_stream(io.BytesIO(buffer.getvalue()), unpacker, quiet)
