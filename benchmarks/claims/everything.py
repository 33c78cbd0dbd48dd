"""Runs every claim, which takes hours. The first seed of all claims runs first, so an early stop still covers each."""

from __future__ import annotations

from importlib import import_module

from _claim import Claim, main
from _rows import HERE

ORDER = (
    "spine",
    "plateau",
    "long_phase",
    "mtp",
    "replay",
    "trust",
    "swaps",
    "summaries",
    "length_cost",
    "budgets",
    "precision_leak",
    "precision_pretraining",
    "precision_rl",
)
"""The order in which claims run, and their order in the table."""
_NO_CLAIMS = {"everything", "table"}


def claims() -> list[Claim]:
    """Every claim in this folder, in order."""
    found = {file.stem for file in HERE.glob("[a-z]*.py")} - _NO_CLAIMS
    assert found == set(ORDER), f"the order names {set(ORDER)}, the folder holds {found}"
    return [import_module(name).CLAIM for name in ORDER]


if __name__ == "__main__":
    main(*claims())
