"""Searches files whose contents are in memory, and merges the matches into the result of searching the folder on disk.

The files are written to a temporary folder, together with the ignore files that apply to their paths, and searched
there. The matches replace those of the same files on disk. An ignore file whose contents are in memory applies only to
other files in memory; files on disk are searched with the rules on disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

from etude.harness.search.ignore_rules import IGNORE_FILES, git_folder
from etude.harness.search.query import Pattern
from etude.harness.search.ripgrep import LIMIT_SECONDS, WHOLE, Found, Ripgrep, Scope


def search_over(
    found: Found,
    ripgrep: Ripgrep,
    root: Path,
    changed: Mapping[str, bytes | None],
    pattern: Pattern,
    *,
    globs: Sequence[str] = (),
    scope: Scope = WHOLE,
    seconds: float = LIMIT_SECONDS,
) -> Found:
    """Return `found`, the result on disk, with the matches of each file in `changed` replaced by those in the contents
    given there; None stands for a deleted file."""
    named = {os.fsencode(path) for path in changed}
    files = [each for each in found.files if each[0] not in named]
    held = {path: data for path, data in changed.items() if data is not None}
    if not held:
        return Found(files, found.problems)
    with tempfile.TemporaryDirectory(prefix="etude-search-") as place:
        # The folder gets the same path below another root, so that rules of parent folders apply in the same way.
        inside = Path(place) / root.relative_to("/")
        for path, data in held.items():
            (inside / path).parent.mkdir(parents=True, exist_ok=True)
            (inside / path).write_bytes(data)
        if not (inside / scope.below).exists():
            return Found(files, found.problems)
        for folder in {root, *root.parents, *_folders(root, held)}:
            _copy_rules(folder, Path(place) / folder.relative_to("/"))
        apart = ripgrep.search(os.fsencode(inside), pattern, globs=globs, scope=scope, seconds=seconds)
    # Copied ignore files are not part of the result.
    files += [each for each in apart.files if each[0] in named]
    return Found(sorted(files, key=itemgetter(0)), found.problems + apart.problems)


def _folders(root: Path, held: Mapping[str, bytes]) -> Iterator[Path]:
    for path in held:
        for parent in Path(path).parents:
            yield root / parent


def _copy_rules(source: Path, target: Path) -> None:
    if not target.is_dir() or target == source:
        return
    for name in IGNORE_FILES:
        if not (target / name).exists():
            with suppress(OSError):
                shutil.copyfile(source / name, target / name)
    if (source / ".git").exists() and not (target / ".git").exists():
        (target / ".git" / "info").mkdir(parents=True)
        with suppress(OSError):
            shutil.copyfile(git_folder(source / ".git") / "info" / "exclude", target / ".git" / "info" / "exclude")
