"""What was measured of each model, its summary, and the JSON with every answer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.bench.asking import Reply
from etude.bench.file_versions import Rebuild
from etude.bench.questions import Question, first_line, is_right
from etude.bench.state_tracking import rebuilt, score_rebuild
from etude.rollout.statistics import Estimate, estimate

Json = dict[str, Any]


@dataclass(slots=True)
class Reading:
    """How well a model predicted the text, summed over windows."""

    nats: float = 0.0
    tokens: int = 0
    """Tokens that were scored."""
    bytes: int = 0
    """Bytes that they stand for."""

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes

    @property
    def perplexity(self) -> float:
        """Per token, which tells little between different vocabularies."""
        return math.exp(min(self.nats / self.tokens, 700.0))


@dataclass(slots=True)
class ModelResult:
    name: str
    about: Json
    reading: Reading | None = None
    rebuilds: list[Json] = field(default_factory=list)
    """One for each file and number of changes, with the answer in full."""
    answers: list[Json] = field(default_factory=list)
    """One for each question."""

    def rebuilt(self, items: Sequence[Rebuild], replies: Sequence[Reply | None], *, plain: bool) -> None:
        for item, reply in zip(items, replies, strict=True):
            row: Json = {"path": item.path, "changes": len(item.diffs), "made": item.made}
            score = {} if reply is None else score_rebuild(item, rebuilt(item, reply.text, plain=plain))
            self.rebuilds.append({**row, **score, **_said(reply)})

    def answered(self, items: Sequence[Question], replies: Sequence[Reply | None], *, plain: bool) -> None:
        for item, reply in zip(items, replies, strict=True):
            row: Json = {"question": item.question, "answers": list(item.answers)}
            if reply is not None:
                row["right"] = is_right(item, first_line(reply.text) if plain else reply.text)
            self.answers.append({**row, **_said(reply)})

    @property
    def wrong(self) -> Estimate | None:
        """The share of wrong characters, with its interval over files."""
        by_file: dict[str, list[float]] = defaultdict(list)
        for row in self.rebuilds:
            if "wrong" in row:
                by_file[row["path"]].append(row["wrong"])
        return estimate([float(np.mean(values)) for values in by_file.values()])

    @property
    def wrong_by_changes(self) -> dict[int, float]:
        by_changes: dict[int, list[float]] = defaultdict(list)
        for row in self.rebuilds:
            if "wrong" in row:
                by_changes[row["changes"]].append(row["wrong"])
        return {changes: float(np.mean(values)) for changes, values in sorted(by_changes.items())}

    @property
    def right(self) -> Estimate | None:
        return estimate([float(row["right"]) for row in self.answers if "right" in row])

    def notes(self) -> list[str]:
        """Say what kept the model from answering, or from answering in full."""
        rows = [*self.rebuilds, *self.answers]
        counts = {
            "not answered": sum("answer" not in row for row in rows),
            "too long for its context": sum(not row.get("fits", True) for row in rows),
            "cut off": sum(row.get("cut_off", False) for row in rows) if not self.about.get("plain") else 0,
        }
        return [f"{count} {what}" for what, count in counts.items() if count]

    def as_json(self) -> Json:
        found: Json = {"model": self.name, **self.about}
        if self.reading is not None:
            read = self.reading
            found["perplexity"] = {
                "bits_per_byte": _finite(read.bits_per_byte),
                "perplexity_per_token": _finite(read.perplexity),
                "tokens": read.tokens,
                "bytes": read.bytes,
            }
        if self.rebuilds:
            by_changes = {str(changes): value for changes, value in self.wrong_by_changes.items()}
            found["state_tracking"] = {**_estimate("wrong", self.wrong), "by_changes": by_changes}
            found["state_tracking"]["answers"] = self.rebuilds
        if self.answers:
            found["questions"] = {**_estimate("right", self.right), "answers": self.answers}
        return found


def _said(reply: Reply | None) -> Json:
    if reply is None:
        return {}
    return {"answer": reply.text, "tokens": reply.tokens, "cut_off": reply.cut_off, "fits": reply.fits}


def _estimate(name: str, found: Estimate | None) -> Json:
    if found is None:
        return {name: None}
    return {name: found.mean, "low": found.low, "high": found.high}


def _finite(value: float) -> float | None:
    """JSON has no name for what is not finite."""
    return value if math.isfinite(value) else None


def standings(settings: Mapping[str, Any], results: Sequence[ModelResult]) -> Json:
    return {"settings": dict(settings), "models": [result.as_json() for result in results]}
