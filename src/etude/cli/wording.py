"""Wording that several verbs print: how an agent's run ended, counts, tables, folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from etude.cli.visible import visible
from etude.harness import Outcome
from etude.trace import StopCause

STOPS: dict[str, str] = {
    StopCause.FINISHED: "done",
    StopCause.REPLIED: "done",
    StopCause.TURNS: "out of turns",
    StopCause.TOKENS: "out of tokens",
    StopCause.TOOL_CALLS: "out of tool calls",
    StopCause.TOOL_SECONDS: "out of tool time",
    StopCause.MONEY: "out of money",
    StopCause.CONTEXT: "out of context",
    StopCause.CANCELLED: "stopped",
    StopCause.WALL_CLOCK: "out of time",
    StopCause.ERROR: "failed",
}


def how_it_ended(outcome: Outcome) -> str:
    why = f": {visible(outcome.error)}" if outcome.error else ""
    return f"{STOPS[outcome.stop]}{why}, {count(outcome.usage.turns, 'turn')}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as lines with aligned columns. The last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = ([*(cell.ljust(w) for cell, w in zip(row[:-1], widths, strict=True)), row[-1]] for row in rows)
    return "\n".join("  ".join(line) for line in lines)


def short_folder(folder: Path) -> str:
    home = Path.home()
    return visible(f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) and folder != home else str(folder))
