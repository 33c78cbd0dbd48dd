"""Training on a CPU beside transformers' Trainer: the same Qwen3 checkpoint, documents, AdamW and fp32.

    make bench NAME=train

Every side is a process that takes one optimizer step at a time, data included. The sides take turns, so that other load
meets all of them. A ratio is the median over the turns of the peer's seconds per trained token by ours; `cpu_...` is
the same of CPU seconds, which other load disturbs less.

- `ratio_hf_30m`: 30M parameters, our packed rows of 2,048 tokens. The peer reads the same rows and attends in each
  document, as ours does; `loss_difference` is that of the last step. `ratio_hf_30m_joined` is beside attention across
  documents, which is less work and another loss.
- `ratio_hf_varlen`: the same documents, which the peer pads. `ratio_hf_varlen_best` is beside the faster of sorting
  them by length and joining them by the peer's own collator.
- `ratio_hf_120m`, `memory_ratio`: 120M parameters, of which two thirds are a vocabulary of 151,936; the peer's peak
  memory by ours. `memory_ratio_30m` is that of the first comparison.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from _report import finish

from etude.model import Transformer, read_config, save_hf

HERE = Path(__file__).resolve().parent
SHAPE = HERE.parent / "recipes" / "shapes" / "tiny-qwen3" / "config.json"
BODY = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
SMALL = BODY | {"num_hidden_layers": 7, "vocab_size": 16_384}
LARGE = BODY | {"num_hidden_layers": 14, "vocab_size": 151_936}
MORE = {"max_position_embeddings": 4096, "rope_theta": 1e6}
PACKED, LOOSE, UNPADDED = ("packed", "joined"), ("padded", "by length", "flat"), ("by length", "flat")
"""How the peer reads rows and documents, see _train_side.py."""

Turns = dict[str, list[dict[str, float]]]
"""For each side, what each of its steps took."""


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        rows, loose = (
            turns(Path(place) / sides[0], SMALL, ("etude", *sides), length=2048, batch=1, shortest=64, steps=4)
            for sides in (PACKED, LOOSE)
        )
        large = turns(Path(place) / "large", LARGE, ("etude", "joined"), length=1024, batch=2, shortest=1024, steps=3)
    best = min(UNPADDED, key=lambda side: ratio(loose, side))
    result: dict[str, Any] = {
        "ratio_hf_30m": ratio(rows, "packed"),
        "ratio_hf_varlen": ratio(loose, "padded"),
        "ratio_hf_120m": ratio(large, "joined"),
        "memory_ratio": memory(large, "joined"),
        "memory_ratio_30m": memory(rows, "packed"),
        "ratio_hf_30m_joined": ratio(rows, "joined"),
        "ratio_hf_varlen_best": ratio(loose, best),
        "cpu_ratio_hf_30m": ratio(rows, "packed", "cpu"),
        "cpu_ratio_hf_varlen": ratio(loose, "padded", "cpu"),
        "cpu_ratio_hf_120m": ratio(large, "joined", "cpu"),
        "tokens_per_second": 1 / statistics.median(per_token(rows, "etude", "seconds")),
        "peak_gib_120m": large["etude"][-1]["peak_gib"],
        "loss_difference": abs(rows["etude"][-1]["loss"] - rows["packed"][-1]["loss"]),
    }
    finish("train", result)


def turns(
    folder: Path, shape: dict[str, int], sides: tuple[str, ...], *, length: int, batch: int, shortest: int, steps: int
) -> Turns:
    """Let all sides take a step in turn, and one before that counts for nothing."""
    folder.mkdir()
    config = read_config(json.loads(SHAPE.read_text()) | shape | MORE)
    save_hf(Transformer(config).initialise(0), folder)
    work = {"folder": str(folder), "dtype": "float32", "length": length, "batch": batch, "shortest": shortest}
    work["threads"] = len(os.sched_getaffinity(0))
    taken: Turns = {side: [] for side in sides}
    with ExitStack() as stack:
        steppers = {side: stack.enter_context(stepper(work | {"side": side, "steps": steps + 2})) for side in sides}
        for turn in range(steps + 1):
            for side, step in steppers.items():
                found = step()
                print(f"{side}: {json.dumps(found)}", file=sys.stderr)
                taken[side] += [found] if turn else []
    return taken


@contextmanager
def stepper(work: dict[str, Any]) -> Iterator[Callable[[], dict[str, float]]]:
    """Start a side, and give a function that takes one of its steps."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "_train_side.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE.parent / "src")},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, back = process.stdin, process.stdout

    def step() -> dict[str, float]:
        print(file=to, flush=True)
        found: dict[str, float] = json.loads(back.readline())
        return found

    try:
        print(json.dumps(work), file=to, flush=True)
        yield step
    finally:
        to.close()
        process.wait()


def per_token(taken: Turns, side: str, what: str) -> list[float]:
    return [step[what] / step["tokens"] for step in taken[side]]


def ratio(taken: Turns, peer: str, what: str = "seconds") -> float:
    pairs = zip(per_token(taken, peer, what), per_token(taken, "etude", what), strict=True)
    return statistics.median(theirs / ours for theirs, ours in pairs)


def memory(taken: Turns, peer: str) -> float:
    return taken[peer][-1]["peak_gib"] / taken["etude"][-1]["peak_gib"]


if __name__ == "__main__":
    main()
