"""What a sequence of OCI layers means, on dictionaries: the reference that real layers are compared with."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from etude.sandbox.images.layers import FIXED_TIME


@dataclass(frozen=True)
class Entry:
    """One member of a layer's tar."""

    kind: str
    """ "file", "folder", "link", "hard", "whiteout" or "opaque"."""
    path: str
    text: str = ""
    """A file's content, a link's goal, or the path a hard link is to."""
    mode: int = 0o644
    owner: int = 0
    time: int = 1_000_000_000


@dataclass(frozen=True)
class Node:
    kind: str
    text: str = ""
    mode: int = 0o755
    owner: int = 0
    time: int = FIXED_TIME
    implied: bool = False


class Refused(Exception):
    pass


Tree = dict[str, Node]


@dataclass
class LayerModel:
    below: Tree
    tree: Tree = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)

    def add(self, entry: Entry) -> None:
        if entry.kind == "whiteout":
            self.removed.add(entry.path)
        elif entry.kind == "opaque":
            self.emptied.add(entry.path)
        else:
            self._write(entry)

    def _write(self, entry: Entry) -> None:
        for parent in parents(entry.path):
            if self.tree.setdefault(parent, Node("folder", implied=True)).kind != "folder":
                raise Refused
        if entry.kind == "hard" and entry.text == entry.path and entry.path in self.tree:
            return
        text = "" if entry.kind == "folder" else entry.text
        node = Node(entry.kind, text, entry.mode & 0o1777, entry.owner, entry.time)
        if not (entry.kind == "folder" and self.tree.get(entry.path, node).kind == "folder"):
            remove(self.tree, entry.path)
        if entry.kind == "hard":
            if any(self.tree.get(parent, Node("folder")).kind != "folder" for parent in parents(entry.text)):
                raise Refused
            found = self.tree.get(entry.text)
            if found is None and self.below.get(entry.text, Node("folder")).kind == "file":
                found = self.below[entry.text]
            if found is None or found.kind == "folder":
                raise Refused
            node = found
        self.tree[entry.path] = node

    def result(self) -> Tree:
        tree = dict(self.below)
        for path in self.removed:
            remove(tree, path)
        for path in self.emptied:
            if tree.get(path, Node("file")).kind == "folder":
                kept = tree[path]
                remove(tree, path)
                tree[path] = kept
        for path, node in sorted(self.tree.items()):
            old = tree.get(path)
            if node.kind == "folder" and old is not None and old.kind == "folder":
                tree[path] = old if node.implied else node
            else:
                remove(tree, path)
                tree[path] = replace(node, implied=False)
        return tree


def apply_layers(layers: Iterable[list[Entry]]) -> Tree:
    tree: Tree = {}
    for entries in layers:
        model = LayerModel(tree)
        for entry in entries:
            model.add(entry)
        tree = model.result()
    return tree


def parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def remove(tree: Tree, path: str) -> None:
    for name in [name for name in tree if name == path or name.startswith(f"{path}/")]:
        del tree[name]


def to_tar(entries: Iterable[Entry], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for entry in entries:
            folder, _, name = entry.path.rpartition("/")
            path = {"whiteout": f"{folder}/.wh.{name}", "opaque": f"{entry.path}/.wh..wh..opq"}
            info = tarfile.TarInfo(path.get(entry.kind, entry.path).lstrip("/"))
            kinds = {"folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}
            info.type = kinds.get(entry.kind, tarfile.REGTYPE)
            info.mode, info.uid, info.gid, info.mtime = entry.mode, entry.owner, entry.owner, entry.time
            data = entry.text.encode() if entry.kind == "file" else b""
            info.size = len(data)
            info.linkname = entry.text if entry.kind in ("link", "hard") else ""
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
