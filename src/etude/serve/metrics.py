"""Counts what the server does, and writes it in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from etude.engine.protocol import EngineStats
from etude.serve.answer import Answer
from etude.serve.refusal import Refused

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_HELP = {
    "etude_requests_total": "Requests by protocol and by how they ended.",
    "etude_tokens_total": "Tokens of answered requests: of prompts, those of them that were cached, and sampled ones.",
    "etude_left_out_total": "Requests with parts that were left out, by protocol.",
    "etude_first_event_seconds": "Time from a request to the first event of its answer.",
    "etude_answer_seconds": "Time from a request to the end of its answer.",
    "etude_in_flight": "Requests that are answered or wait for it.",
}
_GONE = "client_gone"


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._first, self._whole = _Histogram(), _Histogram()

    def ended(
        self, path: str, outcome: Answer | Refused | None, *, seconds: float = 0.0, first: float | None = None
    ) -> None:
        """Count a request. `outcome` None stands for a client that left; `first` are the seconds to the first
        event."""
        if first is not None:
            self._first.add(first)
        if isinstance(outcome, Answer):
            self._whole.add(seconds)
            self._tokens["prompt"] += len(outcome.prompt)
            self._tokens["cached"] += outcome.cached_tokens
            self._tokens["sampled"] += len(outcome.tokens)
            how = str(outcome.finish)
        else:
            how = str(outcome.problem) if outcome is not None else _GONE
        self._requests[path, how] += 1

    def left_out(self, path: str) -> None:
        self._left_out[path] += 1

    def text(self, in_flight: int, engine: EngineStats | None) -> str:
        """Return all metrics; without those of the engine if it does not answer (`engine` is None)."""
        lines = [
            *_counter(
                "etude_requests_total", {f'path="{p}",ended="{how}"': n for (p, how), n in self._requests.items()}
            ),
            *_counter("etude_tokens_total", {f'kind="{kind}"': count for kind, count in self._tokens.items()}),
            *_counter("etude_left_out_total", {f'path="{path}"': count for path, count in self._left_out.items()}),
        ]
        for name, histogram in (("etude_first_event_seconds", self._first), ("etude_answer_seconds", self._whole)):
            lines += [*_about(name, "histogram"), *histogram.lines(name)]
        lines += [*_about("etude_in_flight", "gauge"), f"etude_in_flight {in_flight}"]
        lines += [*_about("etude_engine_up", "gauge"), f"etude_engine_up {int(engine is not None)}"]
        for field, value in asdict(engine).items() if engine is not None else ():
            lines += [f"# TYPE etude_engine_{field} gauge", f"etude_engine_{field} {value}"]
        return "\n".join(lines) + "\n"


def _counter(name: str, values: Mapping[str, int]) -> Iterator[str]:
    yield from _about(name, "counter")
    for labels, value in sorted(values.items()):
        yield f"{name}{{{labels}}} {value}"


def _about(name: str, kind: str) -> Iterator[str]:
    if name in _HELP:
        yield f"# HELP {name} {_HELP[name]}"
    yield f"# TYPE {name} {kind}"
