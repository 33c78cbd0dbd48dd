"""Finds the linters that a repository uses, and the folders that contain a configuration file for each.

A file is linted with the configuration of the nearest folder above it that has one, as in the linters themselves.
"""

from __future__ import annotations

import configparser
import fnmatch
import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from etude.harness.editing.diff import as_text
from etude.harness.lints.linter import Config, Linter
from etude.harness.paths import within
from etude.harness.workspaces.scratch_tree import is_own


@dataclass(frozen=True, slots=True, order=True)
class Root:
    folder: str
    """The folder's path; "." is the workspace itself."""
    config: str
    has_targets: bool = False
    """Whether the linter's configuration file itself lists the files to lint."""


class Tree:
    """The files of one state of a workspace, indexed by file name. Files of installed packages are left out."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self.paths = [path for path in files if is_own(path, files)]
        self.named: defaultdict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            self.named[path.rpartition("/")[2]].append(path)


def find_roots(linter: Linter, tree: Tree) -> list[Root]:
    """Return, sorted by path, the folders that contain a configuration file of the linter and, at any depth, a file
    that it checks. If `linter.roots` is "outermost", folders below another such folder are left out."""
    found: dict[str, Root] = {}
    for config in linter.configs:
        exact = "*" not in config.name
        names = [config.name] if exact else sorted(fnmatch.filter(tree.named, config.name))
        for path in (path for name in names for path in tree.named.get(name, ())):
            folder = folder_of(path)
            table = None if folder in found else _table(path, tree.files[path], config)
            if table is not None:
                found[folder] = Root(folder, path, any(key in table for key in linter.own_targets))
    roots = sorted(found.values())
    if linter.roots == "outermost":
        roots = [root for root in roots if not any(above(other.folder, root.folder) for other in roots)]
    linted = [path for path in tree.paths if path.endswith(linter.suffixes)] if roots else []
    return [root for root in roots if any(within(path, root.folder) and path != root.config for path in linted)]


def nearest(path: str, folders: Iterable[str]) -> str | None:
    holding = [folder for folder in folders if within(path, folder)]
    return max(holding, key=_depth, default=None)


def folder_of(path: str) -> str:
    return path.rpartition("/")[0] or "."


def above(folder: str, path: str) -> bool:
    """Return whether the path is strictly below the folder."""
    return folder != path and within(path, folder)


def relative(path: str, folder: str) -> str:
    return PurePosixPath(path).relative_to(folder).as_posix()


def _depth(folder: str) -> int:
    return 0 if folder == "." else folder.count("/") + 1


def _table(name: str, data: bytes, config: Config) -> Mapping[str, object] | None:
    """Return the linter's settings in a configuration file; None if the file does not configure the linter."""
    text = as_text(data)
    if not config.table:
        return {}
    if text is None:
        return None
    try:
        table = _parsed(name, text)
    except (ValueError, configparser.Error, RecursionError):
        # The file does not parse. If it names the linter, the linter shall run and report the error.
        return {} if ".".join(config.table) in text or f'"{config.table[-1]}"' in text else None
    for key in config.table:
        if not isinstance(table, Mapping) or key not in table:
            return None
        table = table[key]
    return table if isinstance(table, Mapping) else {}


def _parsed(name: str, text: str) -> object:
    if name.endswith(".toml"):
        return tomllib.loads(text)
    if name.endswith(".json"):
        return json.loads(text)
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(text)
    return parser
