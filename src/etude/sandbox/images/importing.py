"""Imports images: a folder, a tar of a root file system, an OCI layout or archive, or `docker save` output."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from etude.sandbox.contract import ImageError
from etude.sandbox.images.archive import HashingReader, damage_as_image_error, decompressed, tar_members
from etude.sandbox.images.image import EMPTY, Image, ImageConfig
from etude.sandbox.images.layers import DEFAULT_BOUNDS, Unpacker
from etude.sandbox.images.oci import (
    INDEXES,
    MAX_JSON,
    Blob,
    Plan,
    Say,
    choose,
    make_image,
    make_plan,
    quiet,
    read_json,
    read_manifest,
    say_skipped,
    unpack_stream,
)
from etude.sandbox.images.stack import Stack
from etude.sandbox.images.store import ImageStore
from etude.sandbox.images.store_process import in_store_process

ROOT_CONFIG = ImageConfig(workdir="/", user="root", command=("/bin/sh",))
"""Image settings for a root file system that comes without any."""
_ARCHIVE_NAMES = re.compile(r"oci-layout|index\.json|manifest\.json|repositories|blobs|[0-9a-f]{64}(\.json|\.tar)?")


def import_image(store: ImageStore, source: Path, *, say: Say = quiet) -> str:
    """Import a folder or file and return the image's id. An ImageError names the damaged or refused part."""
    origin = f"imported from {source.absolute()}"
    if not source.exists():
        raise ImageError(f"{source}: no such file or folder; expected a root file system or an image's archive")
    if source.is_dir():
        if (source / "oci-layout").is_file():
            return _import_layout(store, source, origin, say=say)
        return import_root(store, source, origin, say)
    return _import_archive(store, source, origin, say=say)


@in_store_process
def _import_layout(store: ImageStore, source: Path, origin: str, *, say: Say) -> str:
    return make_image(store, _plan_layout(partial(_open_in_folder, source), str(source)), origin, say)


@in_store_process
def _import_archive(store: ImageStore, source: Path, origin: str, *, say: Say) -> str:
    with source.open("rb") as file:
        members = _archive_members(file, source)
        if members is None:
            return _import_tar(store, source, origin, say)
        file.seek(0)
        with _archive(file, store) as archive:
            if "manifest.json" in members and "oci-layout" not in members:
                plan = _plan_docker(archive, str(source))
            else:
                plan = _plan_layout(archive, str(source))
            return make_image(store, plan, origin, say)


# -- a root file system


def _import_tar(store: ImageStore, source: Path, origin: str, say: Say) -> str:
    with store.fresh("layer") as fresh, source.open("rb") as file:
        digest = unpack_stream(file, Unpacker(source.name, fresh, Stack(()), store.ids), say)
        return _record_root(store, fresh, digest, origin)


def import_root(store: ImageStore, source: Path, origin: str, say: Say) -> str:
    """Import a root file system from a folder, as if it were a tar sorted by name. Return the image's id."""
    # List the folder here and not in the store process, which would see other owner ids than the host's.
    return _import_members(store, source, list(_folder_members(source)), origin, say=say)


@in_store_process
def _import_members(
    store: ImageStore, source: Path, members: list[tuple[tarfile.TarInfo, Path]], origin: str, *, say: Say
) -> str:
    digest = hashlib.sha256()
    with store.fresh("layer") as fresh:
        unpacker = Unpacker(str(source), fresh, Stack(()), store.ids)
        for info, path in members:
            digest.update(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            if info.isreg():
                with path.open("rb") as file:
                    reader = HashingReader(file, digest)
                    unpacker.add(info, cast(IO[bytes], reader))
                    if reader.count != info.size or file.read(1):
                        raise ImageError(f"{path} changed while it was read; import a folder that nothing writes to")
            else:
                unpacker.add(info, None)
        unpacker.finish()
        say_skipped(unpacker.skipped, say)
        return _record_root(store, fresh, f"sha256:{digest.hexdigest()}", origin)


def _record_root(store: ImageStore, fresh: Path, digest: str, origin: str) -> str:
    layer = digest.partition(":")[2]
    with store.hold([layer]):
        store.adopt(fresh, layer)
        return store.record(Image(EMPTY, (layer,), ROOT_CONFIG), origin)


def _folder_members(source: Path) -> Iterator[tuple[tarfile.TarInfo, Path]]:
    """Yield the files of a folder as (tar member, path). Times have whole seconds and owners no names, so that copies
    have the same digest. Of a file's several names, all but the first are hard links."""
    first_names: dict[tuple[int, int], str] = {}
    for path in _walk(source):
        info, name = path.lstat(), str(path.relative_to(source))
        if stat.S_ISSOCK(info.st_mode):
            continue  # A socket cannot be used without its process.
        member = tarfile.TarInfo(name)
        member.uid, member.gid = info.st_uid, info.st_gid
        member.mode, member.mtime = stat.S_IMODE(info.st_mode), int(info.st_mtime)
        member.type = _KINDS[stat.S_IFMT(info.st_mode)]
        if member.issym():
            member.linkname = str(path.readlink())
        elif member.isreg() and info.st_nlink > 1:
            member.linkname = first_names.setdefault((info.st_dev, info.st_ino), name)
            if member.linkname != name:
                member.type = tarfile.LNKTYPE
            else:
                member.linkname = ""
        if member.isreg():
            member.size = info.st_size
        yield member, path


_KINDS = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the folder and everything below it, parents first, sorted by name."""
    yield folder
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)
        else:
            yield path


# -- archives of images


_Archive = Callable[[str], IO[bytes]]
"""An image archive, as a function that opens one of its files by name. It raises KeyError if there is no such file."""


def _open_in_folder(root: Path, name: str) -> IO[bytes]:
    try:
        return (root / name).open("rb")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise KeyError(name) from error


def _open_in_tar(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        file = tar.extractfile(name)
    except RecursionError as error:
        raise ImageError(f"{name} of the archive is a link to itself; make it again") from error
    if file is None:
        raise KeyError(name)
    return file


def _archive_members(file: IO[bytes], source: Path) -> set[str] | None:
    """Return the names in an image archive, or None if the tar is a root file system: it holds a name that no image
    archive has, or neither index.json nor manifest.json."""
    names = set()
    with damage_as_image_error(str(source)):
        for info, _ in tar_members(decompressed(file)):
            parts = PurePosixPath(info.name).parts
            if parts and not _ARCHIVE_NAMES.fullmatch(parts[0]):
                return None
            names.add("/".join(parts))
    return names if names & {"index.json", "manifest.json"} else None


@contextlib.contextmanager
def _archive(file: IO[bytes], store: ImageStore) -> Iterator[_Archive]:
    """Open an image archive. Its files are read in any order, so a compressed archive is first decompressed to disk."""
    stream = decompressed(file)
    with contextlib.ExitStack() as open_files:
        if stream is file:
            file.seek(0)
        else:
            unpacked = open_files.enter_context(store.fresh("archive"))
            file = open_files.enter_context(unpacked.open("w+b"))
            shutil.copyfileobj(HashingReader(stream, hashlib.sha256(), DEFAULT_BOUNDS.bytes), file, 1 << 20)
            file.seek(0)
        tar = open_files.enter_context(tarfile.open(fileobj=file, mode="r:", errors="surrogateescape"))
        yield partial(_open_in_tar, tar)


def _plan_layout(archive: _Archive, source: str) -> Plan:
    blob = choose(read_json(_read(archive, "index.json", source), f"{source}, index.json"), f"{source}, index.json")
    data = _read_blob(archive, blob, source)
    for _ in range(3):  # An index may point to another index.
        if blob.media_type not in INDEXES:
            break
        blob = choose(read_json(data, f"{source}, {blob.digest}"), f"{source}, {blob.digest}")
        data = _read_blob(archive, blob, source)
    config, layers = read_manifest(data, f"{source}, manifest {blob.digest}")
    openers = [(layer, _opener(archive, _blob_path(layer), source)) for layer in layers]
    return make_plan(_read_blob(archive, config, source), openers, f"{source}, config {config.digest}")


def _plan_docker(archive: _Archive, source: str) -> Plan:
    what = f"{source}, manifest.json"
    with damage_as_image_error(what):
        images = json.loads(_read(archive, "manifest.json", source))
    if not isinstance(images, list) or len(images) != 1:
        held = f"{len(images)} images" if isinstance(images, list) else "something else"
        raise ImageError(f"{what}: expected one image, found {held}; save one alone")
    image = images[0]
    if not isinstance(image, dict) or not {"Config", "Layers"} <= set(image) or not isinstance(image["Layers"], list):
        raise ImageError(f"{what}: expected Config and Layers, found {str(image)[:80]}")
    config, layers, names = image["Config"], image["Layers"], image.get("RepoTags") or []
    openers = [(None, _opener(archive, str(layer), source)) for layer in layers]
    return make_plan(_read(archive, str(config), source), openers, f"{what}, {names or config}")


def _blob_path(blob: Blob) -> str:
    return "blobs/" + blob.digest.replace(":", "/")


def _opener(archive: _Archive, name: str, source: str) -> Callable[[], IO[bytes]]:
    def opener() -> IO[bytes]:
        try:
            return archive(name)
        except KeyError as error:
            raise ImageError(f"{source} lacks {name}, which its manifest names; make it again") from error

    return opener


def _read(archive: _Archive, name: str, source: str) -> bytes:
    with damage_as_image_error(source), _opener(archive, name, source)() as file:
        data = file.read(MAX_JSON + 1)
    if len(data) > MAX_JSON:
        raise ImageError(f"{source}, {name}: expected at most {MAX_JSON} bytes, found more")
    return data


def _read_blob(archive: _Archive, blob: Blob, source: str) -> bytes:
    return blob.check(_read(archive, _blob_path(blob), source), f"{source}, {_blob_path(blob)}")
