"""The MTP head, shown by its absence: tokens per second of one engine on the same prompts, drafting and not.

One model, one process, in turns; the best of several rounds counts, since what else the machine does only ever slows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from _arms import Arm
from _claim import Claim, main
from _outcomes import interval, number
from _rows import Rows

from etude.journal import RunPaths
from etude.lineage import LineageState
from etude.recipe import load_recipe
from etude.rollout import across_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPTS, NEW, ROUNDS = 64, 32, 3
_MODES: dict[str, Literal["always", "never"]] = {"with": "always", "without": "never"}


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    """Prompts are demonstrations up to where the agent speaks for the second time."""
    import numpy as np
    import torch

    from etude.engine.builtin import BuiltinEngine
    from etude.engine.protocol import GenerateRequest, Sampling
    from etude.model import load_hf
    from etude.trace.file import read_traces
    from etude.training.compute import DTYPES

    recipe = load_recipe(paths.recipe)
    model = load_hf(paths.model("sft"), DTYPES[LineageState.load(paths.lineage).compute["dtype_name"]])
    prompts = []
    for trace in islice(read_traces(paths.demonstrations), PROMPTS):
        first = trace.segments[0]
        begins = np.flatnonzero(first.sampled[1:] & ~first.sampled[:-1]) + 1
        prompts.append(first.tokens[: begins[min(1, len(begins) - 1)]])
    torch.set_num_threads(1)
    taken: dict[str, list[float]] = {name: [] for name in _MODES}
    accepted = 0.0
    for turn in range(ROUNDS + 1):  # the first warms up
        for name, speculate in _MODES.items():
            settings = recipe.engine.model_copy(update={"speculate": speculate, "slots": PROMPTS})
            engine = BuiltinEngine(model, settings)
            begun = time.perf_counter()
            for number_, prompt in enumerate(prompts):
                sampling = Sampling(max_tokens=NEW, stop=(), temperature=1.0, seed=number_)
                engine.submit(GenerateRequest(f"r{number_}", prompt, sampling, conversation=f"c{number_}"))
            while engine.busy:
                engine.step()
            if turn:
                taken[name].append(time.perf_counter() - begun)
            if name == "with":
                stats = engine.stats()
                accepted = stats.accepted / max(1, stats.drafted)
    rates = {name: round(len(prompts) * NEW / min(seconds), 1) for name, seconds in taken.items()}
    return {"tokens_per_second": rates[arm.name], "same_run": rates, "accepted_per_draft": round(accepted, 4)}


def conclude(rows: Rows) -> dict[str, Any]:
    figures = list(rows.of("with").values())
    ratio = across_seeds([f["same_run"]["with"] / f["same_run"]["without"] for f in figures])
    return {
        "with": [f["same_run"]["with"] for f in figures],
        "without": [f["same_run"]["without"] for f in figures],
        "accepted_per_draft": [f["accepted_per_draft"] for f in figures],
        "ratio": number(ratio),
        "ratio_ci": interval(ratio),
    }


def headline(found: Mapping[str, Any]) -> str:
    if found["ratio"] is None:
        return ""
    low, high = found["ratio_ci"]
    return f"{found['ratio']:.2f} times the tokens per second, 95 %: {low:.2f} to {high:.2f}"


def draw(rows: Rows) -> Figure | None:
    from _plots import bars, panels, title

    figure, axes = panels(1)
    found = [f["same_run"] for f in rows.of("with").values()]
    bars(axes[0], {"same prompts": {arm: across_seeds([f[arm] for f in found]) for arm in ("without", "with")}})
    title(axes[0], "tokens per second of one engine")
    return figure


CLAIM = Claim(
    name="mtp",
    says="Drafting with the MTP head makes generation faster",
    arms=(Arm("with", "rl.toml"), Arm("without", "rl.toml")),
    until="sft",
    measure=measure,
    conclude=conclude,
    headline=headline,
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
