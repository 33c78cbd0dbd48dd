"""The build context: the folder from which COPY and ADD take files, except what .dockerignore excludes.

Nothing outside the folder is ever read. A link is followed only if COPY names it as a source, and only within the
folder.
"""

from __future__ import annotations

import posixpath
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from etude.sandbox.contract import BuildFailed, ImageError
from etude.sandbox.images.build.members import Member, Source
from etude.sandbox.images.build.patterns import Glob, Ignored, is_pattern


@dataclass(frozen=True, slots=True)
class Context:
    root: Path
    """Resolved path of the context's folder."""
    ignored: Ignored = field(default_factory=Ignored)
    ignore_file: str = ".dockerignore"

    @classmethod
    def open(cls, folder: Path, dockerfile: Path) -> Context:
        """Open a build context. The ignore file is the Dockerfile's own (NAME.dockerignore) or else the folder's."""
        if not folder.is_dir():
            raise ImageError(f"{folder}: expected a folder with a Dockerfile in it")
        for path in (dockerfile.with_name(f"{dockerfile.name}.dockerignore"), folder / ".dockerignore"):
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            except (IsADirectoryError, UnicodeDecodeError) as error:
                raise BuildFailed(f"cannot read {path}: {error}") from error
            except OSError as error:
                raise ImageError(f"cannot read {path}: {error}") from error
            try:
                return cls(folder.resolve(), Ignored.from_text(text), path.name)
            except ValueError as error:
                raise BuildFailed(f"{path}: {error}") from error
        return cls(folder.resolve())

    def select(self, pattern: str) -> list[Source]:
        """Return a Source for each path that `pattern`, a source of a COPY, matches and .dockerignore does not exclude.
        Raises ValueError if there is no such path, or if one lies outside the context's folder."""
        # In the context's top folder, ".." stays there, as in a root directory.
        names = posixpath.normpath(f"/{pattern.lstrip('/')}")[1:].split("/")
        found = list(self._matching(self.root, names if names != [""] else []))
        sources = [self._source(path) for path in sorted(found) if not self._excluded(path)]
        if not sources:
            hint = f"; {self.ignore_file} leaves it out" if found else ""
            raise ValueError(f"there is no {pattern} in the context {self.root}{hint}")
        return sources

    def _matching(self, folder: Path, names: list[str]) -> Iterator[Path]:
        """Yield the paths below `folder` that match `names`, which holds one pattern for each level."""
        if not names:
            yield folder
            return
        name, rest = names[0], names[1:]
        if is_pattern(name):
            matches = Glob(name).matches
            listed = self._inside(folder).iterdir() if folder.is_dir() else ()
            candidates = sorted(path for path in listed if matches(path.name))
        else:
            candidates = [folder / name]
        for path in candidates:
            if path.exists() or (not rest and path.is_symlink()):
                yield from self._matching(path, rest)

    def _inside(self, path: Path) -> Path:
        """Resolve a path, and raise ValueError if it leads out of the context."""
        found = path.resolve()
        if not found.is_relative_to(self.root):
            raise ValueError(f"{path.relative_to(self.root)} leads out of the context")
        return found

    def _excluded(self, path: Path) -> bool:
        """Return whether .dockerignore excludes the path and, if it is a folder, everything below it."""
        relative = str(path.relative_to(self.root))
        if relative == "." or not self.ignored.excludes(relative):
            return False
        return not (self.ignored.has_exceptions and path.is_dir() and any(self._below(self._inside(path), "")))

    def _source(self, path: Path) -> Source:
        resolved = self._inside(path)
        if not resolved.exists():
            raise ValueError(f"{path.relative_to(self.root)} is a link to nothing")
        top = self._member(resolved, "")
        below = self._below(resolved, "") if top.kind == tarfile.DIRTYPE else ()
        return Source(path.name if path != self.root else "", [top, *below])

    def _below(self, folder: Path, prefix: str) -> Iterator[Member]:
        """Yield the members below a folder in sorted order, so that the same files give the same digest."""
        for path in sorted(folder.iterdir()):
            name = f"{prefix}{path.name}"
            info = path.lstat()
            excluded = self.ignored.excludes(str(path.relative_to(self.root)))
            if stat.S_ISDIR(info.st_mode):
                if excluded and not self.ignored.has_exceptions:
                    continue
                below = list(self._below(path, f"{name}/"))
                if below or not excluded:
                    yield self._member(path, name)
                yield from below
            elif not excluded and not stat.S_ISSOCK(info.st_mode):  # A socket cannot be used without its process.
                yield self._member(path, name)

    def _member(self, path: Path, name: str) -> Member:
        info = path.lstat()
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISDIR(info.st_mode):
            return Member(name, tarfile.DIRTYPE, mode)
        if stat.S_ISLNK(info.st_mode):
            return Member(name, tarfile.SYMTYPE, 0o777, goal=str(path.readlink()))
        if not stat.S_ISREG(info.st_mode):
            raise ValueError(f"{path.relative_to(self.root)} is neither file, folder nor link")
        return Member(name, tarfile.REGTYPE, mode, size=info.st_size, open=lambda: path.open("rb"))
