"""Makes the tars that are sent to a container engine: of a generated tree, an image's files, a folder, or a build
context."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from etude.sandbox.contract import RequestRefused
from etude.sandbox.images.build.context import Context
from etude.sandbox.images.layers import FIXED_TIME
from etude.sandbox.inside.users import USERS

_CHUNK = 1 << 20
DOCKERFILE = ".etude-dockerfile"


@contextmanager
def new_tar(file: IO[bytes], **options: Any) -> Iterator[tarfile.TarFile]:
    """Open a tar for writing. On exit, the padding after the end mark is cut off: an engine stops reading at the mark,
    and would refuse the whole tar if padding were still being sent."""
    with tarfile.open(fileobj=file, mode="w", **options) as tar:
        yield tar
    file.truncate(tar.offset)


def tar_of_skeleton(folder: Path) -> bytes:
    """Make a tar of the generated tree that is the root of boxes over this host's system folders. Its files have the
    owners that they have in a box."""
    owners = {"work": USERS["agent"], **{f"home/{name}": number for name, number in USERS.items()}}
    buffer = io.BytesIO()
    with new_tar(buffer) as tar:
        for path in [folder, *sorted(folder.rglob("*"))]:
            member = tar.gettarinfo(path, str(path.relative_to(folder)))
            member.uid = member.gid = owners.get(member.name, 0)
            member.uname = member.gname = ""
            member.mtime = FIXED_TIME
            with path.open("rb") if member.isreg() else io.BytesIO() as content:
                tar.addfile(member, content if member.isreg() else None)
    return buffer.getvalue()


def tar_of_files(files: dict[str, bytes], workdir: PurePosixPath, owner: int) -> bytes:
    """Make a tar of `files` (path relative to `workdir` -> content). Every folder comes before its content, so that the
    engine gives it the right owner."""
    folders, contents = {workdir}, {workdir / name: content for name, content in files.items()}
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise RequestRefused(f"file {name!r}: expected a path relative to the workdir, without '..'")
        folders |= {workdir / parent for parent in path.parents}
    if both := folders & set(contents):
        raise RequestRefused(f"file {str(min(both))!r} is also a folder of another file's path")
    buffer = io.BytesIO()
    with new_tar(buffer) as tar:
        for path in sorted([*folders, *contents]):
            member = tarfile.TarInfo(str(path.relative_to("/")))
            member.uid = member.gid = owner
            member.mtime = FIXED_TIME
            if path in folders:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            else:
                content = contents[path]
                member.size, member.mode = len(content), 0o755 if content.startswith(b"#!") else 0o644
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def tar_of_folder(folder: Path, target: Path) -> None:
    with target.open("wb") as file, new_tar(file) as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)


def tar_of_context(context: Context, dockerfile: bytes, target: Path) -> None:
    """Write a tar for a build by the engine: the context's files, owned by root, and the Dockerfile as DOCKERFILE.

    The context's own .dockerignore has been applied already. The engine reads one too, so the tar has a new one, which
    only keeps itself and the added Dockerfile out of the image."""
    own = {DOCKERFILE: dockerfile, ".dockerignore": f"{DOCKERFILE}\n.dockerignore\n".encode()}
    with target.open("wb") as out, new_tar(out, format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for name, content in own.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for member in context.select(".")[0].members:
            if not member.path or member.path in own:
                continue
            info = tarfile.TarInfo(member.path)
            info.type, info.mode, info.linkname = member.kind, member.mode, member.goal
            info.size, info.mtime = member.size, FIXED_TIME
            with member.open() if member.open else io.BytesIO() as file:
                tar.addfile(info, file)


def is_archive(path: Path) -> bool:
    """Whether a tar holds an image (OCI or `docker save`) rather than a root file system."""
    with tarfile.open(path) as tar:
        for number, member in enumerate(tar):
            if member.name.removeprefix("./") in ("manifest.json", "oci-layout", "index.json"):
                return True
            if number > 1000:
                break
    return False


async def chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
