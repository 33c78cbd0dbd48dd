"""Layers of images: nothing is written outside of a layer's folder, whatever its tar holds."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
from pathlib import Path

import zstandard
from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of
from tests.fuzz.targets.tars import examples, tars
from tests.fuzz.temporary import fresh_folder

from etude.sandbox.contract import ImageError
from etude.sandbox.images.importing import _archive_members
from etude.sandbox.images.layers import Bounds, Unpacker
from etude.sandbox.images.oci import quiet, unpack_stream
from etude.sandbox.images.stack import Stack

_BOUNDS = Bounds(bytes=1 << 20, members=500)
_PACKERS = (bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress)


def _run_layer(data: bytes) -> str:
    place = fresh_folder("layers")
    below = place / "below"
    (below / "a/b").mkdir(parents=True)
    (below / "a/b/c").write_bytes(b"below")
    (below / "b").symlink_to("..")
    (place / "secret").write_bytes(b"beside the layer")
    before = _facts(below), (place / "secret").stat().st_mtime_ns
    unpacker = Unpacker("x", place / "layer", Stack((below,)), None, _BOUNDS)
    try:
        unpack_stream(io.BytesIO(data), unpacker, quiet)
        outcome = f"{min(len(os.listdir(place / 'layer')), 5)} entries"  # noqa: PTH208
    except ImageError as error:
        outcome = kind_of(error)
    assert sorted(os.listdir(place)) == ["below", "layer", "secret"], "something was written beside the layer"  # noqa: PTH208
    assert (_facts(below), (place / "secret").stat().st_mtime_ns) == before, "something outside was changed"
    for path in _walk(place / "layer"):
        info = path.lstat()
        assert not info.st_mode & 0o6000 or stat.S_ISDIR(info.st_mode), "a set-id bit was kept"
        assert not stat.S_ISBLK(info.st_mode), "a device"
        assert not stat.S_ISCHR(info.st_mode) or info.st_rdev == 0, "a device"
    return outcome


def _facts(folder: Path) -> list[object]:
    return [(path, path.lstat().st_mtime_ns, path.lstat().st_nlink, path.lstat().st_mode) for path in _walk(folder)]


def _walk(folder: Path) -> list[Path]:
    found, waiting = [folder], [folder]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            found.append(path)
            if path.is_dir() and not path.is_symlink():
                waiting.append(path)
    return found


def _run_members(data: bytes) -> str:
    """Whether it is an image's archive or a root file system."""
    try:
        found = _archive_members(io.BytesIO(data), Path("x.tar"))
    except ImageError as error:
        return kind_of(error)
    return "root" if found is None else f"archive of {min(len(found), 5)}"


_PACKED = st.builds(lambda data, pack: pack(data), tars(), st.sampled_from(_PACKERS))


def _examples() -> list[bytes]:
    return [pack(data) for data in examples() for pack in _PACKERS]


_WATCHED = ("etude.sandbox.images", "tarfile")

TARGETS = (
    Target("layer", _run_layer, _PACKED, _WATCHED, _examples),
    Target("image-archive", _run_members, _PACKED, _WATCHED, _examples),
)
