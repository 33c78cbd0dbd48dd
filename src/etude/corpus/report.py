"""What a corpus was made of: per source and origin, how many files were read, dropped and why, held out and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from etude.corpus.cleaning import REASONS


@dataclass(slots=True)
class SourceReport:
    """Counts of the files of one package, repository, folder, table or generator."""

    source: str
    origin: str
    files: int = 0
    bytes: int = 0
    """Size of all files, including those that were dropped unread."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Number of dropped files by reason."""
    held_out: int = 0
    kept: int = 0
    """Number of files left for the train split, without those that were dropped or held out."""
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    sources: Sequence[SourceReport]
    examples: Mapping[str, Sequence[str]]
    """Some dropped files by reason."""
    redacted: Mapping[str, int]
    """Number of redactions by kind of secret."""
    unchecked: Sequence[str] = ()
    """Languages whose syntax was not checked, since they have no grammar here."""

    def as_json(self) -> dict[str, Any]:
        return {
            "sources": [asdict(one) for one in self.sources],
            "reasons": {reason: REASONS[reason] for reason in REASONS if reason in self.dropped()},
            "examples": dict(self.examples),
            "redacted": dict(self.redacted),
            "unchecked": list(self.unchecked),
        }

    def dropped(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for one in self.sources:
            total.update(one.dropped)
        return total

    def of_reason(self, reason: str) -> dict[str, int]:
        """Return the number of files that were dropped for a reason, by source; sources without any are left out."""
        total: Counter[str] = Counter()
        for one in self.sources:
            total[one.source] += one.dropped.get(reason, 0)
        return dict(+total)

    def rows(self) -> list[tuple[str, ...]]:
        """Return a table: a line per origin, and a line per reason."""
        rows: list[tuple[str, ...]] = [("SOURCE", "ORIGIN", "FILES", "MB", "KEPT", "MB", "HELD OUT", "DROPPED")]
        for one in self.sources:
            why = ", ".join(f"{count} {reason}" for reason, count in _in_order(one.dropped))
            sizes = (f"{one.bytes / 1e6:.1f}", str(one.kept), f"{one.kept_bytes / 1e6:.1f}", str(one.held_out))
            rows.append((one.source, one.origin, str(one.files), *sizes, why or "nothing"))
        return rows

    def reasons(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("DROPPED", "FILES", "BECAUSE", "SUCH AS")]
        for reason, count in _in_order(self.dropped()):
            rows.append((reason, str(count), REASONS[reason], ", ".join(self.examples.get(reason, ()))))
        return rows


def _in_order(dropped: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(reason, dropped[reason]) for reason in REASONS if dropped.get(reason)]
