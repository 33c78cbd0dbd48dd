"""Ablation of the MTP head: tokens per second of one engine on the same prompts, with and without drafting.

Measured with one conversation and with many at a time, since drafting saves steps but may cost more than it saves if
the batch is full. The verdict comes from one conversation.

Prompts are conversations of RL's first evaluation on dev, cut before one of the agent's turns; which turn varies from
prompt to prompt. A generation ends where the harness would end it. Prefill is included.

One model runs both ways alternately in one process with one thread. Seconds are CPU time, and the best of several
rounds counts, since other load can only add time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from _arms import Arm
from _claim import Claim, main
from _figures import Told, number, of_seeds, stated
from _outcomes import on_dev
from _rows import Rows
from _verdict import above

from etude.journal import RunPaths
from etude.lineage import LineageState
from etude.recipe import load_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from etude.engine.builtin import BuiltinEngine
    from etude.engine.protocol import IntArray, Sampling

TOGETHER = {1: 32, 8: 64, 64: 192}
"""Conversations at a time, and their total number."""
ROUNDS = 3
MODES: dict[str, Literal["always", "never"]] = {"with": "always", "without": "never"}


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    from etude.engine.builtin import BuiltinEngine
    from etude.engine.protocol import Sampling
    from etude.harness.from_recipe import format_of
    from etude.model import load_hf
    from etude.training.compute import DTYPES

    recipe = load_recipe(paths.recipe)
    stop = format_of(recipe.harness, paths.tokenizer).stop_ids
    sampling = Sampling(max_tokens=recipe.harness.max_turn_tokens, stop=stop)
    model = load_hf(paths.model("sft"), DTYPES[LineageState.load(paths.lineage).compute["dtype_name"]])
    prompts = _prompts(paths)
    rates: dict[str, dict[str, float]] = {}
    accepted: dict[str, float] = {}
    with _one_thread():
        for slots, count in TOGETHER.items():
            seconds: dict[str, list[float]] = {name: [] for name in MODES}
            for turn in range(ROUNDS + 1):  # the first warms up
                for name, speculate in MODES.items():
                    own = recipe.engine.model_copy(update={"speculate": speculate, "slots": slots})
                    engine = BuiltinEngine(model, own)
                    taken = _seconds_per_token(engine, prompts[:count], sampling)
                    if turn:
                        seconds[name].append(taken)
                    if name == "with":
                        accepted[str(slots)] = round(engine.stats().accepted / max(1, engine.stats().drafted), 4)
            rates[str(slots)] = {name: round(1 / min(taken), 1) for name, taken in seconds.items()}
    return {"tokens_per_second": rates, "accepted_per_draft": accepted}


def _prompts(paths: RunPaths) -> list[IntArray]:
    """Return prompts from one sample of each task, then from a second one of each."""
    import numpy as np

    from etude.rollout import read_samples
    from etude.trace.file import read_traces

    first = on_dev(paths)[0]
    drawn = [sample for sample in read_samples(first / "results.jsonl") if sample.valid and not sample.greedy]
    drawn.sort(key=lambda sample: (sample.id.rpartition("/")[2], sample.task))
    names = [sample.trace for sample in drawn[: max(TOGETHER.values())]]
    segments = {trace.id: trace.segments[0] for trace in read_traces(first / "traces", only=names)}
    prompts = []
    for place, name in enumerate(names):
        segment = segments[name]
        begins = np.flatnonzero(segment.sampled[1:] & ~segment.sampled[:-1]) + 1
        prompts.append(segment.tokens[: begins[place % len(begins)]])
    return prompts


def _seconds_per_token(engine: BuiltinEngine, prompts: Sequence[IntArray], sampling: Sampling) -> float:
    from etude.engine.protocol import GenerateRequest, Generation

    begun, tokens = time.process_time(), 0
    for place, prompt in enumerate(prompts):
        own = replace(sampling, seed=place)
        engine.submit(GenerateRequest(f"r{place}", prompt, own, conversation=f"c{place}"))
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
    found: dict[str, Any] = {}
    for slots in TOGETHER:
        with_, without = _rates(rows, slots, "with"), _rates(rows, slots, "without")
        found |= {f"with_{slots}": with_, f"without_{slots}": without}
        found |= stated(f"ratio_{slots}", of_seeds([a / b for a, b in zip(with_, without, strict=True)]))
        accepted = [figures["accepted_per_draft"][str(slots)] for figures in rows.of("one model").values()]
        found[f"accepted_{slots}"] = number(of_seeds(accepted))
        found[f"accepted_{slots}_by_seed"] = accepted
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
    says="Drafting with the MTP head makes the generation of one conversation faster",
    arms=(Arm("one model", "rl.toml"),),
    until="rl",  # for its first evaluation
    measure=measure,
    conclude=conclude,
    decided=(above("ratio_1", 1.0),),
    headline=tuple(
        told
        for slots in TOGETHER
        for told in (
            Told(f"ratio_{slots}", f"{slots} at a time: {{}} times the tokens per second"),
            Told(f"accepted_{slots}", "{} % of drafts accepted", ".0f", 100.0),
        )
    ),
    draw=draw,
    measured=2,
)

if __name__ == "__main__":
    main(CLAIM)
