"""What an agent is told about its environment before it begins: system, limits, repository status and rules files.

Everything comes from the workspace, so that the agent is told the same in training, in a box, and in a user's folder.
It is a snapshot, told once; later changes are for tools to find out. Equal workspaces give equal text, except for the
user's recent files (`recent`), which only a session has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from etude.harness.context.output_limit import Count, cut_end
from etude.harness.editing.diff import as_text
from etude.harness.workspaces.workspace import NoShell, Workspace
from etude.sandbox.contract import RequestRefused

RULES = ("AGENTS.md", "CLAUDE.md", ".cursorrules", ".github/copilot-instructions.md", "GEMINI.md")
"""Where repositories keep rules for agents. Of several files in a folder with the same text, the first is used."""
RULES_FOLDER = ".cursor/rules"
RULE_TOKENS = 4_000
STATUS_LINES = 40
COMMAND_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    system: str = ""
    """One line with the operating system and the shell."""
    limits: str = ""
    """What commands may use, in words."""
    status: tuple[str, ...] = ()
    """Output of `git status` for the working tree or the user's folder; empty without a repository."""
    recent: tuple[str, ...] = ()
    """Files that the user changed last."""
    rules: tuple[tuple[str, str], ...] = field(default=())
    """Path and text of each rules file, outermost folder first. Those of a deeper folder take precedence there."""

    def __bool__(self) -> bool:
        return bool(self.system or self.limits or self.status or self.recent or self.rules)


async def look_around(
    workspace: Workspace,
    count: Count,
    *,
    system: str = "",
    limits: str = "",
    status: Sequence[str] = (),
    recent: Sequence[str] = (),
    commands: bool = True,
) -> Surroundings:
    """`commands`: whether commands may find out what is not given; not where the user must agree to each."""
    if commands:
        system = system or " ".join(await _said(workspace, "uname -sm; echo ${SHELL:-/bin/sh}"))
        status = status or await _said(workspace, "git status --short --branch 2>/dev/null")
    if len(status) > STATUS_LINES:
        status = [*status[:STATUS_LINES], f"({len(status) - STATUS_LINES} more)"]
    return Surroundings(system, limits, tuple(status), tuple(recent), await find_rules(workspace, count))


def system_of_host() -> str:
    """Same as `look_around`'s `system`, for commands that run on the user's own machine."""
    host = os.uname()
    return f"{host.sysname} {host.machine} {os.environ.get('SHELL', '/bin/sh')}"


async def find_rules(workspace: Workspace, count: Count) -> tuple[tuple[str, str], ...]:
    """Find all rules files; each is cut to its first RULE_TOKENS tokens."""
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
    """The folder that a rules file applies to."""
    name = next((name for name in RULES if f"/{path}".endswith(f"/{name}")), "")
    if name:
        return path.removesuffix(name).rstrip("/")
    return path.partition(RULES_FOLDER)[0].rstrip("/")


def _depth(folder: str) -> int:
    return folder.count("/") + 1 if folder else 0


def _rank(path: str) -> int:
    return next((place for place, name in enumerate(RULES) if f"/{path}".endswith(f"/{name}")), len(RULES))


async def _said(workspace: Workspace, command: str) -> list[str]:
    try:
        result = await workspace.exec(command, timeout=COMMAND_SECONDS)
    except NoShell:
        return []
    text = result.stdout.decode("utf-8", "replace").strip("\n")
    return text.split("\n") if result.code == 0 and text else []
