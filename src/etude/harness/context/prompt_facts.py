"""Facts about the environment for the system prompt: system, limits, repository status and rules files.

The facts are collected once, before the agent begins. Training, which works in a box, and sessions on a user's folder
collect the same facts, so equal workspaces give equal text. One fact is an exception: only sessions on a user's folder
have the user's recent files (`recent`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from etude.harness.context.output_limit import Count, cut_end
from etude.harness.editing.diff import as_text
from etude.harness.workspaces.workspace import NoShell, Workspace
from etude.sandbox.contract import RequestRefused

RULES = ("AGENTS.md", "CLAUDE.md", ".cursorrules", ".github/copilot-instructions.md", "GEMINI.md")
"""Names of the files in which repositories keep rules for agents. If several files of a folder have the same text, only
the first is used."""
RULES_FOLDER = ".cursor/rules"
"""Folder whose .md and .mdc files are rules files too."""
RULE_TOKENS = 4_000
STATUS_LINES = 40
COMMAND_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts about an agent's environment. An empty field means that the fact is unknown."""

    system: str = ""
    limits: str = ""
    status: tuple[str, ...] = ()
    """Lines of `git status` for the working tree or the user's folder; empty without a repository."""
    recent: tuple[str, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    """Path and text of each rules file, outermost folder first. Rules of inner folders override those of outer ones."""


async def collect_facts(
    workspace: Workspace,
    count: Count,
    *,
    system: str = "",
    limits: str = "",
    status: Sequence[str] = (),
    recent: Sequence[str] = (),
    commands: bool = True,
) -> Surroundings:
    """Collect the facts about a workspace that are not passed as arguments. With `commands`, `system` and `status` are
    found by running commands; pass False if the user has to agree to each command."""
    if commands:
        system = system or " ".join(await _said(workspace, "uname -sm; echo ${SHELL:-/bin/sh}"))
        status = status or await _said(workspace, "git status --short --branch 2>/dev/null")
    if len(status) > STATUS_LINES:
        status = [*status[:STATUS_LINES], f"({len(status) - STATUS_LINES} more)"]
    return Surroundings(system, limits, tuple(status), tuple(recent), await find_rules(workspace, count))


def host_system() -> str:
    host = os.uname()
    return f"{host.sysname} {host.machine} {os.environ.get('SHELL', '/bin/sh')}"


async def find_rules(workspace: Workspace, count: Count) -> tuple[tuple[str, str], ...]:
    """Return path and text of all rules files, outermost folder first, each cut to RULE_TOKENS tokens."""
    found: list[tuple[str, str]] = []
    seen: set[tuple[str, str]] = set()
    paths = [path for path in await workspace.files() if _is_rules(path)]
    for path in sorted(paths, key=lambda path: (_depth(_folder(path)), _rank(path), path)):
        try:
            text = (as_text(await workspace.read(path)) or "").strip()
        except (FileNotFoundError, RequestRefused):
            continue
        if not text or (_folder(path), text) in seen:
            continue
        seen.add((_folder(path), text))
        found.append((path, cut_end(text.split("\n"), RULE_TOKENS, count, lambda n: f"({n} lines cut)", "(cut)")))
    return tuple(found)


def _is_rules(path: str) -> bool:
    inside = f"/{path}"
    if any(inside.endswith(f"/{name}") for name in RULES):
        return True
    return f"/{RULES_FOLDER}/" in inside and PurePosixPath(path).suffix in (".md", ".mdc")


def _folder(path: str) -> str:
    """Return the folder that a rules file applies to; "" for the whole workspace."""
    name = next((name for name in RULES if f"/{path}".endswith(f"/{name}")), "")
    if name:
        return path.removesuffix(name).rstrip("/")
    return path.partition(RULES_FOLDER)[0].rstrip("/")


def _depth(folder: str) -> int:
    return folder.count("/") + 1 if folder else 0


def _rank(path: str) -> int:
    """Return a rules file's sort key within its folder: the index of its name in RULES; files in RULES_FOLDER come
    last."""
    return next((index for index, name in enumerate(RULES) if f"/{path}".endswith(f"/{name}")), len(RULES))


async def _said(workspace: Workspace, command: str) -> list[str]:
    """Run a command and return the lines of its output; none if it fails or there is no shell."""
    try:
        result = await workspace.exec(command, timeout=COMMAND_SECONDS)
    except NoShell:
        return []
    text = result.stdout.decode("utf-8", "replace").strip("\n")
    return text.split("\n") if result.code == 0 and text else []
