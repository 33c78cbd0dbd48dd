"""The backend's folder: images as layers named by content, and a lock per owner that tells the dead from the living.

images/<id>.json   layers from the top, base           layers/<digest>/   a folder tree, never changed once named
base/<digest>/     generated trees                     owners/<name>/     lock and scratch of one living backend
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from etude.sandbox.contract import RequestRefused, SandboxError

FORMAT = "etude-image/1"
HOST = "host"
MAX_LAYERS = 40
# Files of an image have one fixed time, so that a box made from it is the same every time.
_TIME = 946_684_800
_SYSTEM = {"", "bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr"}


def check_workdir(workdir: str) -> PurePosixPath:
    path = PurePosixPath(workdir)
    if not path.is_absolute() or ".." in path.parts or "\0" in workdir or (*path.parts, "")[1] in _SYSTEM:
        raise RequestRefused(
            f"workdir {workdir!r}: expected an absolute path outside the system's folders, such as /work"
        )
    return path


class ImageStore:
    def __init__(self, root: Path, agent_id: int | None) -> None:
        self.root, self.agent_id = root, agent_id
        for name in ("images", "layers", "base", "owners"):
            (root / name).mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)
        self.owner = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.scratch = root / "owners" / self.owner
        with _locked(root / "lock"):
            self.scratch.mkdir()
            self._lock = os.open(self.scratch / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            remove_dead_owners(root / "owners")

    def add(self, files: dict[str, bytes], base: str, workdir: str) -> str:
        inside = check_workdir(workdir)
        for name in files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
                raise RequestRefused(f"file {name!r}: expected a path relative to the workdir, without '..'")
        below = self.layers(base)
        digest = hashlib.blake2b(digest_size=16)
        for part in (FORMAT, str(inside), *(text for item in sorted(files.items()) for text in item)):
            data = part if isinstance(part, bytes) else part.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
        layer = f"{digest.hexdigest()}{'r' if self.agent_id else ''}"
        if not (self.root / "layers" / layer).is_dir():
            fresh = self.scratch / f"add-{secrets.token_hex(8)}"
            self._write_layer(fresh, inside, files)
            self.adopt(fresh, layer)
        return self.record([layer, *below])

    def _write_layer(self, fresh: Path, workdir: PurePosixPath, files: dict[str, bytes]) -> None:
        top = fresh.joinpath(*workdir.parts[1:])
        top.mkdir(parents=True)
        for name, content in files.items():
            path = top / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise RequestRefused(f"file {name!r} is also a folder of another file's path") from error
            if content.startswith(b"#!"):
                path.chmod(0o755)
        for path in [*sorted(fresh.rglob("*"), reverse=True), fresh]:
            if path.is_dir():
                path.chmod(0o755)
            if self.agent_id is not None:
                owner = self.agent_id if path.is_relative_to(top) else self.agent_id - 1
                os.chown(path, owner, owner)
            os.utime(path, (_TIME, _TIME))

    def adopt(self, fresh: Path, layer: str) -> None:
        """Gives a finished tree its name; when the name is taken, the content is the same and the copy goes."""
        try:
            fresh.rename(self.root / "layers" / layer)
        except OSError:
            remove_tree(fresh)
            if not (self.root / "layers" / layer).is_dir():
                raise

    def record(self, layers: list[str]) -> str:
        """An image of these layers, top first; the same layers have the same id."""
        # A layer below itself shows nothing that its upper place does not; overlayfs refuses it.
        layers = list(dict.fromkeys(layers))
        if len(layers) > MAX_LAYERS:
            raise RequestRefused(f"an image of {len(layers)} layers; at most {MAX_LAYERS} are possible")
        image = hashlib.blake2b("\n".join([FORMAT, HOST, *layers]).encode(), digest_size=16).hexdigest()
        path = self.root / "images" / f"{image}.json"
        if not path.exists():
            fresh = self.scratch / f"{image}-{secrets.token_hex(4)}.json"
            fresh.write_text(json.dumps({"format": FORMAT, "base": HOST, "layers": layers}))
            fresh.rename(path)
        return image

    def layers(self, image: str) -> list[str]:
        if image == HOST:
            return []
        path = self.root / "images" / f"{image}.json"
        if not image.isalnum() or not path.is_file():
            raise RequestRefused(
                f"no image {image!r} in {self.root}; add_image or snapshot makes one, 'host' is always there"
            )
        record = json.loads(path.read_text())
        missing = [layer for layer in record["layers"] if not (self.root / "layers" / layer).is_dir()]
        if missing:
            raise SandboxError(f"image {image} lacks its layers {', '.join(missing)} in {self.root}; add it again")
        return list(record["layers"])

    def close(self) -> None:
        remove_tree(self.scratch)
        os.close(self._lock)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Between making an owner's folder and locking it, no janitor may look."""
    number = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def remove_dead_owners(owners: Path) -> list[str]:
    """The janitor: scratch folders whose owner holds no lock any more go. Returns their names."""
    removed = []
    for folder in sorted(owners.iterdir()):
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # Another janitor was first, or it is another user's.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            remove_tree(folder)
            removed.append(folder.name)
        finally:
            os.close(lock)
    return removed


def remove_tree(path: Path) -> None:
    """Also where folders deny entry to their own owner, as overlayfs's work folder does."""

    def open_up(function: Callable[..., Any], name: str, _: Any) -> None:
        with contextlib.suppress(OSError):
            folder = Path(name).parent
            folder.chmod(0o700)
            if stat.S_ISDIR(Path(name).lstat().st_mode):
                Path(name).chmod(0o700)
                if function is not os.rmdir:
                    shutil.rmtree(name, onerror=open_up)
                    return
            function(name)

    shutil.rmtree(path, onerror=open_up)
