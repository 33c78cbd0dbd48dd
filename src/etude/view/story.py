"""Writes the report's summary: up to three sentences about what happened, for readers who do not know the run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from etude.tasks.task import Cell
from etude.view.data import RunData
from etude.view.table import STAGES, last_trained, minutes

_TRAINING = ("pretrain", "long", "mtp", "sft", "continued", "rl")
_WHERE = {
    Cell.BOTH_SEEN: "both were met",
    Cell.UNSEEN_FAMILY: "the family was new",
    Cell.UNSEEN_KIND: "the kind of bug was new",
    Cell.BOTH_UNSEEN: "both were new",
}


def story(data: RunData) -> list[str]:
    """Return up to three sentences about a run: what was trained; how many test tasks are solved; and how many test
    tasks have a function family or kind of bug that is new to training. The third also says where RL or continued SFT
    helped least or did harm: on tasks with new families, new kinds, both or neither. Sentences without data are left
    out."""
    end = last_trained(data.summary)
    found = data.summary.get(end, {})
    told = [_trained(data)] if any(data.stages.get(stage, {}).get("done") for stage in _TRAINING) else []
    if {"tasks", "pass1_before_interval", "pass1_after_interval"} <= found.keys():
        what = {"rl": "RL", "continued": "more demonstrations"}.get(end, STAGES[end])
        told.append(_tested(found, what))
        if cells := data.summary.get("cells"):
            told.append(_held_out(cells, found["k"], what))
    return told


def _trained(data: RunData) -> str:
    done = [STAGES[stage] for stage in _TRAINING if data.stages.get(stage, {}).get("done")]
    whole = bool(data.stages.get("evaluate", {}).get("done"))
    network = "A network"
    if "parameters" in data.started:
        total, active = (_millions(data.started[key]) for key in ("parameters", "active"))
        network += f" of {total} million parameters, {active} million of them at work on each token,"
    base = data.stages.get("base", {}).get("result", {})
    start = Path(base["named"]).name if base.get("weights") == "stored" else "nothing"
    became = (
        f"was trained from {start} into a coding agent in" if whole else f"has been trained from {start}, so far for"
    )
    text = f"{network} {became} {_duration(minutes(data.summary))}"
    text += _machine(data.started)
    if begun := min((record["started"] for record in data.stages.values()), default=0.0):
        text += f", on {datetime.fromtimestamp(begun, UTC):%d %B %Y}".replace(" 0", " ")
    text += f": {', '.join(done)}{' (RL)' if done[-1] == STAGES['rl'] else ''}"
    if any(record.get("taken_from") for record in data.stages.values()):
        text += " (what another run had done alike was taken over)"
    return f"{text}."


def _machine(started: dict[str, Any]) -> str:
    if "cpus" not in started:
        return ""
    of = f", {started['memory_gib']:.0f} GiB of memory" if started.get("memory_gib") else ""
    beside = f" and {started['accelerator']}" if started.get("accelerator") else ""
    return f" on {started['cpus']} CPUs ({started['kind']}{of}){beside}"


def _tested(found: dict[str, Any], what: str) -> str:
    def solved(when: str) -> tuple[str, str, str]:
        low, high = found[f"pass1_{when}_interval"]
        mean = found[f"pass1_{when}"]
        return f"{mean * found['tasks']:.0f}", f"{100 * mean:.0f}%", f"{100 * low:.0f} to {100 * high:.0f}%"

    before, share, interval = solved("before")
    after, share_after, interval_after = solved("after")
    return (
        f"One attempt at each of {found['tasks']} unseen test tasks solved {before} of them before {what} ({share}, "
        f"95% interval {interval}) and {after} after it ({share_after}, {interval_after}), as the average of "
        f"{found['k']} attempts."
    )


def _held_out(cells: dict[str, Any], k: int, what: str) -> str:
    new = sum(cell["tasks"] for name, cell in cells.items() if name != Cell.BOTH_SEEN)
    told = f"{new} of these tasks are of a family of functions, or hold a kind of bug, that training never met"
    gains = {cell: gain for cell in Cell if cell in cells and (gain := _gain(cells[cell], "pass1")) is not None}
    said: list[str] = []
    if gains and min(gains.values()) >= 0:
        least = min(gains, key=lambda cell: gains[cell])
        said.append(f"{what} helped least where {_WHERE[least]} ({_from_to(cells[least], 'pass1')})")
    by = {"pass1": "by one attempt", "passk": f"by one at least of {k} attempts", "greedy": "by the likeliest attempt"}
    for key, how in by.items():
        fell = [cell for cell in Cell if cell in cells and (_gain(cells[cell], key) or 0.0) < 0]
        if fell:
            where = " and where ".join(f"{_WHERE[cell]} ({_from_to(cells[cell], key)})" for cell in fell)
            said.append(f"fewer than before were solved {how} where {where}")
    return f"{told}: {'; '.join(said)}." if said else f"{told}."


def _gain(cell: dict[str, Any], key: str) -> float | None:
    before, after = cell.get(f"{key}_before"), cell.get(f"{key}_after")
    return None if before is None or after is None else after - before


def _from_to(cell: dict[str, Any], key: str) -> str:
    return f"from {100 * cell[f'{key}_before']:.0f}% to {100 * cell[f'{key}_after']:.0f}%"


def _millions(count: float) -> str:
    return f"{count / 1e6:,.1f}" if count < 1e7 else f"{count / 1e6:,.0f}"


def _duration(taken: float) -> str:
    if taken >= 120:
        return f"{taken / 60:.1f} hours"
    return f"{taken:.0f} minute{'' if round(taken) == 1 else 's'}"
