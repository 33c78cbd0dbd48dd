"""Writes the table of claims from the rows alone: prints it, puts it between its markers in docs/claims.md, and redraws
the plots. The README gets a list of the verdicts, between its own markers.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from _claim import Claim, current, draw
from _figures import headline
from _rows import ROOT, ROWS, Row, Rows, read_all
from everything import claims

from etude.journal import write_atomically

TABLE = ("<!-- claims -->", "<!-- end of claims -->")
VERDICTS = ("<!-- verdicts -->", "<!-- end of verdicts -->")
NOT_YET = "not run yet"


def table(rows: Sequence[Row], plots: Path, page: Path) -> str:
    lines = ["| claim | shown? | what came out | seeds | command |", "|---|---|---|---|---|"]
    for claim in claims():
        own = measured_alike(claim, rows)
        found = claim.conclude(own)
        said = headline(claim.headline, found)
        plot = plots / f"{claim.name}.png"
        picture = f" ([plot]({os.path.relpath(plot, page.parent)}))" if said and plot.exists() else ""
        told = "; ".join(filter(None, (_told(claim, own, said), _age(claim, own)))) + picture
        cells = (claim.says, claim.verdict(own, found) or "", told, _seeds(claim, own), f"`{_command(claim)}`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def verdicts(rows: Sequence[Row]) -> str:
    """One line for each claim: its verdict and its sentence."""
    found = [(claim, measured_alike(claim, rows)) for claim in claims()]
    told = [(claim.verdict(own, claim.conclude(own)) or NOT_YET, claim.says) for claim, own in found]
    return "\n".join(f"- **{verdict}**: {says}" for verdict, says in told)


def measured_alike(claim: Claim, rows: Sequence[Row]) -> Rows:
    """The claim's rows whose figures were measured by the current `measure`, with whatever recipe."""
    return Rows([row for row in rows if row.measured == claim.measured], claim.name)


def _told(claim: Claim, rows: Rows, said: str) -> str:
    missing = [arm.name for arm in claim.arms if arm.name not in rows.arms]
    if not rows:
        return NOT_YET
    return "; ".join(filter(None, [said, f"{NOT_YET}: {', '.join(missing)}" if missing else ""])) or "too few rows yet"


def _age(claim: Claim, rows: Rows) -> str:
    """Note how many rows were made with an earlier recipe, which the claim's command would make again, and whether the
    arms of a seed were made by different versions of the code."""
    stale = len(rows) - len(current(claim, rows.all))
    versions = max((len({row.code for row in rows.all if row.seed == seed}) for seed in rows.seeds), default=0)
    said = (
        f"{stale} of {len(rows)} rows by an earlier recipe" if stale else "",
        f"arms by {versions} versions of the code" if versions > 1 else "",
    )
    return "; ".join(filter(None, said))


def _seeds(claim: Claim, rows: Rows) -> str:
    """The seeds that every arm with rows has."""
    return ", ".join(map(str, rows.seeds_with(rows.arms)))


def _command(claim: Claim) -> str:
    return f"make bench NAME=claims/{claim.name}"


def put_into(page: Path, text: str, markers: tuple[str, str] = TABLE) -> None:
    """Replace the text between the markers; a page without them is left unchanged."""
    whole = page.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if begin and end:
        write_atomically(page, f"{before}{begin}\n{text}\n{end}{after}".encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=Path, default=ROWS, help="file of rows to read (default docs/claims/rows.jsonl); plots go beside"
    )
    parser.add_argument(
        "--page", type=Path, default=ROOT / "docs/claims.md", help="page that gets the table (default docs/claims.md)"
    )
    parser.add_argument(
        "--readme", type=Path, default=ROOT / "README.md", help="page that gets the verdicts (default README.md)"
    )
    asked = parser.parse_args()
    rows = read_all(asked.rows)
    for claim in claims():
        draw(claim, measured_alike(claim, rows), asked.rows.parent)
    text = table(rows, asked.rows.parent, asked.page)
    put_into(asked.page, text)
    put_into(asked.readme, verdicts(rows), VERDICTS)
    print(text)


if __name__ == "__main__":
    main()
