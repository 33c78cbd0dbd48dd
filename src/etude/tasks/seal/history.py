"""Squashes a repository's history into one commit of the present files by a fixed author.

The new repository is created from nothing, so no setting, hook, filter or alternate of the old one takes effect; only
the list of tracked files is read from the old one. The image's own git creates it, in the box and without network. If
the image has no git, the host's git creates it in a separate box.
"""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources

from etude.sandbox.contract import Box, BoxSpec, Sandboxes
from etude.tasks.fresh_box import fresh_box
from etude.tasks.seal.leftovers import Removed, folders_above, is_below
from etude.tasks.seal.root import LIMITS, Root, members, run
from etude.tasks.task import TaskError

_SQUASH_SCRIPT = resources.files(__package__).joinpath("squash.sh").read_text(encoding="utf-8")
_GIT = re.compile(r".*?/\.git(?=/|$)", re.DOTALL)
_SUBMODULE = b"160000"
_COPY_FOLDER = "/work"
_HISTORY_REASON = "the repository's history: objects, refs, reflog, stash, notes, hooks"
_NESTED_REASON = "a repository within the workspace, or what its history was borrowed from"


@dataclass(frozen=True, slots=True)
class History:
    """A workspace's repository before it is squashed."""

    top: str
    """Root of the working tree: the workspace or a folder above it."""
    tracked: frozenset[str] | None
    """Absolute paths of the tracked files; None if they cannot be listed, for example because the image has no git. The
    single commit then holds every file that git does not ignore."""
    branch: str
    stores: tuple[Removed, ...]
    """Every path that holds history: `.git` itself, the `.git` of submodules and worktrees, and alternates."""


async def find_history(root: Root, paths: Sequence[str], workdir: str) -> History | None:
    """Return the repository that the workspace belongs to, or None."""
    gits = sorted({git for path in paths if (git := _git_folder_of(path))}, key=len)
    above = [git for git in gits if is_below(workdir, git.removesuffix("/.git")) and git != "/.git"]
    if not above:
        return None
    git = above[-1]
    top = git.removesuffix("/.git")
    store = await _resolve_git_file(root, git, paths)
    outside = [
        place for place in await _object_stores(root, store) if not is_below(place, git) and _is_git_data(place, paths)
    ]
    inside = [place for place in gits if is_below(place, top) and place != git]
    stores = (
        Removed(git, _HISTORY_REASON),
        *(Removed(place, _NESTED_REASON) for place in dict.fromkeys([*inside, *outside])),
    )
    return History(top, await _tracked(root, top, store, paths), await _branch(root, store), stores)


async def squash(root: Root, history: History, sandboxes: Sandboxes) -> None:
    """Create a repository with one commit of the present files. The caller must have removed every path in
    `history.stores`. If neither the image nor the host has git, no repository is created."""
    if await _has_git(root.box):
        await _squash_in(root.box, history.top, history, await _git_user(root, history.top))
        return
    async with _box_with_git(sandboxes, root, history) as (git_box, owner):
        if await _has_git(git_box):
            await _squash_in(git_box, _COPY_FOLDER, history, "")
            git = await git_box.read_tree(f"{_COPY_FOLDER}/.git", max_bytes=512 << 20, max_files=200_000)
            await root.box.write_tree(f"{history.top}/.git", _with_owner(git, *owner), max_files=200_000)


async def _squash_in(box: Box, top: str, history: History, user: str) -> None:
    inside = sorted(path.removeprefix(f"{history.top}/") for path in history.tracked or ())
    listing = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in inside)
    which = "all" if history.tracked is None else "named"
    status = await _git(box, "squash", user, top, history.branch, which, stdin=listing)
    if status:
        lines = status.decode("utf-8", "replace").splitlines()
        raise TaskError(
            f"{history.top}: expected a clean `git status` once the history is squashed, found {'; '.join(lines[:3])}"
        )


async def _git(box: Box, verb: str, user: str, top: str, *arguments: str, stdin: bytes = b"") -> bytes:
    return await run(box, ["/bin/sh", "-c", _SQUASH_SCRIPT, verb, verb, *arguments], user, cwd=top, stdin=stdin)


async def _has_git(box: Box) -> bool:
    return (await box.exec("command -v git", timeout=60, cwd="/")).code == 0


async def _git_user(root: Root, top: str) -> str:
    """Return the user that git runs as: the box's default user (an empty name) if that user owns the files, else
    `root.user`. Git refuses a repository that belongs to another user."""
    owns = await root.box.exec(["/bin/sh", "-c", "test -O . && test -w ."], timeout=60, cwd=top)
    return "" if owns.code == 0 else root.user


# -- what the old repository holds


def _git_folder_of(path: str) -> str:
    found = _GIT.match(path)
    return found[0] if found else ""


async def _resolve_git_file(root: Root, git: str, paths: Iterable[str]) -> str:
    """Return the folder that a worktree's or submodule's `.git` file points to, or `.git` itself if it is a folder."""
    if git not in paths:
        return git
    goal = (await _text(root, git)).partition("gitdir:")[2].strip()
    return _joined(git.rpartition("/")[0], goal) if goal else git


def _is_git_data(place: str, paths: Iterable[str]) -> bool:
    """Return whether a folder holds git's data. A repository can name any folder of the image as a part of itself, such
    as an alternate; only one with git's data is removed with it."""
    return any(path.startswith((f"{place}/objects/", f"{place}/refs/")) or path == f"{place}/gitdir" for path in paths)


async def _object_stores(root: Root, store: str) -> list[str]:
    """Return all folders that a repository's objects may come from: its own, its common one and, recursively,
    alternates."""
    found, waiting = [store], [store]
    while waiting and len(found) < 64:
        place = waiting.pop()
        common = (await _text(root, f"{place}/commondir")).strip()
        lines = (await _text(root, f"{place}/objects/info/alternates")).splitlines()
        goals = [_joined(f"{place}/objects", line.strip()) for line in lines if line.strip() and line[0] != "#"]
        goals = [goal.removesuffix("/objects") for goal in goals] + ([_joined(place, common)] if common else [])
        new = [goal for goal in goals if goal not in ("/", *found)]
        found += new
        waiting += new
    return found


async def _tracked(root: Root, top: str, store: str, paths: Sequence[str]) -> frozenset[str] | None:
    """Return the absolute paths of the tracked files, also of submodules, or None if they cannot be listed."""
    if not await _has_git(root.box):
        return None
    try:
        status = await _git(root.box, "tracked", root.user, top, store)
    except TaskError:
        return None
    entries = (entry.partition(b"\t") for entry in status.split(b"\0") if entry)
    modes = {f"{top}/{name.decode('utf-8', 'surrogateescape')}": facts[:6] for facts, _, name in entries}
    # The index lists a submodule as one entry; its files, if any, count as the repository's own from now on.
    modules = {name for name, mode in modes.items() if mode == _SUBMODULE}
    below = {path for path in paths if not modules.isdisjoint(folders_above(path)) and not _git_folder_of(path)}
    return frozenset((modes.keys() - modules) | below)


async def _branch(root: Root, store: str) -> str:
    name = (await _text(root, f"{store}/HEAD")).strip().removeprefix("ref: refs/heads/")
    plain = name.replace("-", "").replace("_", "").replace("/", "").isalnum()
    return name if plain and len(name) < 40 else "main"


async def _text(root: Root, path: str) -> str:
    return (await root.read(path)).decode("utf-8", "surrogateescape")


def _joined(base: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(base, path))


# -- with another box's git


@asynccontextmanager
async def _box_with_git(
    sandboxes: Sandboxes, root: Root, history: History
) -> AsyncIterator[tuple[Box, tuple[int, int]]]:
    """Yield a box that has the host's git and a copy of the working tree, and the tree's owner (uid, gid)."""
    async with fresh_box(sandboxes, BoxSpec("host", workdir=_COPY_FOLDER, limits=LIMITS, name="squash")) as box:
        owner: tuple[int, int] | None = None
        async for piece in root.pieces(history.top):
            if piece.unread:
                raise TaskError(f"{piece.unread}: a file too large for a repository")
            if piece.tar:
                owner = owner or next((info.uid, info.gid) for info, _ in members(piece.tar))
                await box.write_tree(f"{_COPY_FOLDER}{piece.folder.removeprefix(history.top)}", piece.tar)
        yield box, owner or (0, 0)


def _with_owner(tar: bytes, uid: int, gid: int) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(tar)) as source, tarfile.open(fileobj=target, mode="w") as copy:
        for info in source:
            info.uid, info.gid = uid, gid
            copy.addfile(info, source.extractfile(info) if info.isreg() else None)
    return target.getvalue()
