"""Every claim in one command: hours. The first seed of all claims comes first, so that what is cut short tells most."""

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
    "swaps",
    "summaries",
    "length_cost",
    "budgets",
    "precision_leak",
    "precision_pretraining",
    "precision_rl",
)
"""Of the table too."""
_NO_CLAIMS = {"everything", "table"}


def claims() -> list[Claim]:
    """Every claim of this folder."""
    found = {file.stem for file in HERE.glob("[a-z]*.py")} - _NO_CLAIMS
    assert found == set(ORDER), f"the order names {set(ORDER)}, the folder holds {found}"
    return [import_module(name).CLAIM for name in ORDER]


if __name__ == "__main__":
    main(*claims())
