"""The MTP head, shown by its absence: tokens per second of one engine on the same prompts, drafting and not, alone and
many together: what drafting saves in steps it may lose where a step is full anyway.

One model, one process, one thread, in turns; seconds are those of the processor, and the best of several rounds
counts, since what else the machine does only ever slows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from _arms import Arm
from _claim import Claim, main
from _figures import Told, of_seeds, stated
from _rows import Rows

from etude.journal import RunPaths
from etude.lineage import LineageState
from etude.recipe import load_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from etude.engine.builtin import BuiltinEngine
    from etude.engine.protocol import IntArray

TOGETHER = {1: 8, 8: 32, 64: 64}
"""Conversations at a time, and how many in all."""
NEW, ROUNDS = 32, 3
MODES: dict[str, Literal["always", "never"]] = {"with": "always", "without": "never"}


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    from etude.engine.builtin import BuiltinEngine
    from etude.model import load_hf
    from etude.training.compute import DTYPES

    settings = load_recipe(paths.recipe).engine
    model = load_hf(paths.model("sft"), DTYPES[LineageState.load(paths.lineage).compute["dtype_name"]])
    prompts = _prompts(paths)
    rates: dict[str, dict[str, float]] = {}
    accepted = 0.0
    with _one_thread():
        for slots, count in TOGETHER.items():
            seconds: dict[str, list[float]] = {name: [] for name in MODES}
            for turn in range(ROUNDS + 1):  # the first warms up
                for name, speculate in MODES.items():
                    own = settings.model_copy(update={"speculate": speculate, "slots": slots})
                    engine = BuiltinEngine(model, own)
                    taken = _seconds_per_token(engine, prompts[:count])
                    if turn:
                        seconds[name].append(taken)
                    if name == "with":
                        accepted = engine.stats().accepted / max(1, engine.stats().drafted)
            rates[str(slots)] = {name: round(1 / min(taken), 1) for name, taken in seconds.items()}
    return {"tokens_per_second": rates, "accepted_per_draft": round(accepted, 4)}


def _prompts(paths: RunPaths) -> list[IntArray]:
    """Demonstrations up to where the agent speaks for the second time."""
    import numpy as np

    from etude.trace.file import read_traces

    prompts = []
    for trace in islice(read_traces(paths.demonstrations), max(TOGETHER.values())):
        first = trace.segments[0]
        begins = np.flatnonzero(first.sampled[1:] & ~first.sampled[:-1]) + 1
        prompts.append(first.tokens[: begins[min(1, len(begins) - 1)]])
    return prompts


def _seconds_per_token(engine: BuiltinEngine, prompts: Sequence[IntArray]) -> float:
    from etude.engine.protocol import GenerateRequest, Generation, Sampling

    begun, tokens = time.process_time(), 0
    for number, prompt in enumerate(prompts):
        sampling = Sampling(max_tokens=NEW, stop=(), temperature=1.0, seed=number)
        engine.submit(GenerateRequest(f"r{number}", prompt, sampling, conversation=f"c{number}"))
    while engine.busy:
        for answer in engine.step():
            if not isinstance(answer, Generation):
                raise answer.error
            tokens += len(answer.tokens)
    return (time.process_time() - begun) / tokens


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rates(rows: Rows, slots: int, mode: str) -> list[float]:
    return [figures["tokens_per_second"][str(slots)][mode] for figures in rows.of("one model").values()]


def conclude(rows: Rows) -> dict[str, Any]:
    found: dict[str, Any] = {"accepted_per_draft": [f["accepted_per_draft"] for f in rows.of("one model").values()]}
    for slots in TOGETHER:
        with_, without = _rates(rows, slots, "with"), _rates(rows, slots, "without")
        found |= {f"with_{slots}": with_, f"without_{slots}": without}
        found |= stated(f"ratio_{slots}", of_seeds([a / b for a, b in zip(with_, without, strict=True)]))
    return found


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, title

    figure, axes = panels(len(TOGETHER))
    for axis, slots in zip(axes, TOGETHER, strict=True):
        bars(axis, {"same prompts": {mode: of_seeds(_rates(rows, slots, mode)) for mode in ("without", "with")}})
        title(axis, f"tokens per second, {slots} at a time")
    return figure


CLAIM = Claim(
    name="mtp",
    says="Drafting with the MTP head makes generation faster",
    arms=(Arm("one model", "rl.toml"),),
    until="sft",
    measure=measure,
    conclude=conclude,
    headline=tuple(
        Told(f"ratio_{slots}", f"{slots} at a time: {{}} times the tokens per second") for slots in TOGETHER
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
