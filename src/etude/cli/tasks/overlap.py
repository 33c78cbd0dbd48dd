"""etude tasks overlap: prints what two collections share, one row per pair of items that share something."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from etude.cli.errors import FAILED
from etude.cli.wording import count, table
from etude.tasks import Split, TaskError
from etude.tasks.overlap import find_leaks, read_side

_SHOWN = 40
_SAMPLE = 60


def overlap_command(first: Path, second: Path, as_json: bool, numbers: bool = False) -> int:
    one, other = (read_side(*_side(place)) for place in (first, second))
    leaks = find_leaks(one, other, numbers=numbers)
    if as_json:
        print(json.dumps([asdict(leak) for leak in leaks], indent=1, ensure_ascii=False))
        return FAILED if leaks else 0
    if leaks:
        rows = [(leak.what, str(leak.count), leak.a, leak.b, leak.sample[:_SAMPLE]) for leak in leaks[:_SHOWN]]
        print(table([("what", "shared", "in the first", "in the second", "for example"), *rows]))
    if len(leaks) > _SHOWN:
        print(f"... and {len(leaks) - _SHOWN} more: --json lists all")
    print(f"{count(len(leaks), 'place') if leaks else 'nothing'} shared")
    return FAILED if leaks else 0


def _side(place: Path) -> tuple[Path, Split | None]:
    """Split PATH:SPLIT into path and split; a plain PATH has no split."""
    path, mark, name = str(place).rpartition(":")
    if not mark or place.exists():
        return place, None
    if name not in list(Split):
        raise TaskError(f"{place}: expected PATH or PATH:SPLIT with train, dev or test, found {name!r}")
    return Path(path), Split(name)
