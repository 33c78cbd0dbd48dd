"""docs/results.md is drawn from the recorded rows, and says what was not recorded."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import results


def test_the_page_is_what_its_rows_say(tmp_path: Path) -> None:
    """`make results` was run after the last row was recorded."""
    rows = [json.loads(line) for line in results.ROWS.read_text(encoding="utf-8").splitlines()]
    shown = tomllib.loads(results.SHOWN.read_text(encoding="utf-8"))
    assert results.page(rows, shown, tmp_path) == results.PAGE.read_text(encoding="utf-8")
    for picture in tmp_path.iterdir():
        assert picture.read_text() == (results.ROWS.parent / picture.name).read_text()


def test_the_latest_row_that_has_the_figure_counts(tmp_path: Path) -> None:
    def row(date: str, mode: str, **result: object) -> dict[str, object]:
        return {
            "date": date,
            "command": "make bench NAME=one",
            "result": {"mode": mode, **result},
            "machine": "m, load 1",
        }

    rows = [
        row("day 1", "root", deep={"list": [0, 7]}),
        row("day 2", "user", deep={"list": [0, 8]}),
        row("day 3", "root"),
    ]
    figures = [
        {"key": "deep.list.1", "name": "found", "better": "larger", "target": 2_000},
        {"key": "deep.list.2", "name": "missing", "better": "smaller"},
    ]
    shown = {"one": {"what": "a thing", "only": {"mode": "root"}, "peer": "another", "figures": figures}}
    assert results.page(rows, shown, tmp_path).removeprefix(results.HEAD).splitlines() == [
        "| `one`: a thing | found | 7 | ≥ 2,000 | another |  | day 1, m |",
        "|  | missing | not recorded |  |  |  |  |",
    ]
