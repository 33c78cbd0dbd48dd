"""etude agents list: the background agents and their states."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from etude.cli.visible import visible
from etude.cli.wording import STOPS, short_folder
from etude.harness.background import Agent, AgentState, read_all_agents

_STYLES = {
    AgentState.RUNNING: "cyan",
    AgentState.DONE: "green",
    AgentState.FAILED: "red",
    AgentState.INTERRUPTED: "red",
    AgentState.PARTLY: "green",
}
_HEAD = ("ID", "STATE", "TURNS", "AGE", "CHANGE", "WHAT")


def list_command(sessions: Path, folder: Path | None, as_json: bool) -> int:
    found, problems = read_all_agents(sessions.resolve())
    for problem in problems:
        print(f"etude: {problem}", file=sys.stderr)
    if folder is not None:
        found = [agent for agent in found if agent.order.folder == folder.resolve()]
    if as_json:
        print(json.dumps([summary_of(agent) for agent in found]))
        return 0
    if not found:
        print("no agents: `etude agent -p TEXT --background` starts one", file=sys.stderr)
        return 0
    console = Console(highlight=False, width=shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000)
    rows = [_row(agent) for agent in found]
    widths = [max(len(row[column]) for row in [_HEAD, *rows]) for column in range(len(_HEAD) - 1)]
    console.print(_line(_HEAD, widths, console.width), style="dim", markup=False)
    for place in dict.fromkeys(agent.order.folder for agent in found):
        console.print(short_folder(place), style="bold", markup=False)
        for agent, row in zip(found, rows, strict=True):
            if agent.order.folder == place:
                console.print(_line(row, widths, console.width), style=_STYLES.get(agent.state, ""), markup=False)
    return 0


def summary_of(agent: Agent) -> dict[str, Any]:
    change = agent.change()
    return {
        "id": agent.order.id,
        "name": agent.order.name,
        "state": agent.state.value,
        "stop": agent.ended.stop,
        "error": agent.ended.error,
        "ahead": agent.ahead,
        "folder": str(agent.order.folder),
        "model": agent.order.model,
        "begun": agent.order.begun,
        "turns": agent.session.turns if agent.session else 0,
        "files": change.files,
        "added": change.added,
        "removed": change.removed,
        "prompts": list(agent.order.prompts),
        "session": str(agent.place),
    }


def state_of(agent: Agent) -> str:
    if agent.state is AgentState.DONE:
        return STOPS.get(agent.ended.stop, "done")
    if agent.state is AgentState.QUEUED:
        return f"queued ({agent.ahead - agent.order.at_once + 1})"
    return agent.state.value


def _row(agent: Agent) -> tuple[str, ...]:
    change = agent.change()
    order = agent.order
    what = order.prompts[0].strip().split("\n")[0]
    return (
        order.id,
        state_of(agent),
        str(agent.session.turns if agent.session else 0),
        age(time.time() - order.begun),
        f"{change.files} +{change.added} -{change.removed}" if change.files else "-",
        visible(f"{order.name}: {what}" if order.name else what),
    )


def _line(row: Iterable[str], widths: list[int], room: int) -> str:
    *cells, last = row
    line = "  ".join([f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)] + [last])
    return line if len(line) <= room else f"{line[: room - 1]}…"


def age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(seconds, 0))}s"
