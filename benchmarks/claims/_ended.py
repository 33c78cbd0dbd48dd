"""Runs that ended because a loss, a gradient or weights were not finite.

For a claim about numerics that is a result, not a failure: a format that breaks down must not look like one that was
not tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _figures import Told
from _rows import Rows

from etude.journal import RunPaths, read_journal, read_metrics

BY_NUMBERS = {"etude.training.errors.NonFiniteError", "etude.model.errors.PoisonedWeights"}


def ended(paths: RunPaths, stage: str) -> dict[str, Any] | None:
    """Return the stage's last step and the reason it ended; None unless non-finite numbers ended it."""
    told = [e for e in read_journal(paths.journal) if e.kind.startswith("stage_") and e.fields.get("stage") == stage]
    if not told or told[-1].fields.get("error") not in BY_NUMBERS:
        return None
    steps = [row["step"] for row in read_metrics(paths.metrics(stage))]
    return {"step": max(steps, default=0), "why": str(told[-1].fields["reason"]).partition("\n")[0]}


def all_ended(rows: Rows) -> list[dict[str, Any]] | None:
    """List such ends over all arms and seeds. None while there are none and fewer than two arms have rows."""
    ends = [{"arm": row.arm, "seed": row.seed, **row.figures["ended"]} for row in rows.all if row.figures.get("ended")]
    return ends if ends or len(rows.arms) > 1 else None


class ToldEnds(Told):
    """The result of `all_ended` in words, or `text` if no run ended that way."""

    def __call__(self, found: Mapping[str, Any]) -> str:
        if found[self.key] is None:
            return ""
        said = [
            f"{end['arm']} ended after step {end['step']} (seed {end['seed']}: {end['why']})" for end in found[self.key]
        ]
        return "; ".join(said) or self.text
