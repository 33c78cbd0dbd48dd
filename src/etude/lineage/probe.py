"""Measures this machine's speed in the units that a plan counts in: tokens through the recipe's network, gradings, and
generated documents.

The three measurements take about two seconds together on an idle machine. On a busy machine they take longer, as the
run itself will.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from etude.journal import RunPaths
from etude.lineage.base import network_of
from etude.model import Transformer, compute_with
from etude.model.size import operations_per_token, shrunk
from etude.recipe import Recipe
from etude.rollout import open_setup
from etude.sandbox.contract import SandboxError
from etude.sandbox.open import without_fleet
from etude.tasks import Judgement, Split, Task, make_tasks, open_source, reference_diff
from etude.tasks.sources.microrepo.documents import make_document
from etude.training.compute import Compute

_STEPS = 3
_AT_ONCE = 4
"""Number of gradings that run concurrently while they are timed. A run that gates its tasks grades as many at once."""
_GRADINGS = 8
"""Number of timed gradings per task."""
_DOCUMENTS = 200
_LARGEST = 30_000_000
"""Largest number of parameters of a network that is timed as it is; that of a larger network's two layers."""
_LONGEST = 512
"""Number of tokens of a step of such layers."""
_USUAL_GRADING = 0.019
"""Seconds per grading to assume if no sandbox can run here; measured on a machine with two cores."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per unit of work on this machine."""

    token: float
    """Seconds for the forward and backward pass of one token, without optimizer."""
    grading: float
    """Seconds for grading one reference solution in a fresh sandbox, with several at a time."""
    document: float
    """Seconds for generating one document."""
    unprobed: str = ""
    """Why no grading could be timed on this machine, so that `grading` is a typical value; empty if it was timed."""

    def __str__(self) -> str:
        graded = f"a typical value, since no box runs here: {self.unprobed}" if self.unprobed else "graded here"
        tokens = f"{1 / self.token:,.0f}" if self.token < 0.1 else f"{1 / self.token:.2g}"
        speeds = f"{tokens} tokens/s of this network, {1 / self.document:,.0f} documents/s"
        return f"{speeds}, {1 / self.grading:,.0f} gradings/s ({graded})"


def probe(recipe: Recipe, compute: Compute) -> Pace:
    try:
        grading, unprobed = asyncio.run(_seconds_of_grading(recipe)), ""
    except SandboxError as error:
        grading, unprobed = _USUAL_GRADING, " ".join(str(error).split())
    return Pace(_seconds_of_token(recipe, compute), grading, _seconds_of_document(recipe.seed), unprobed)


def _seconds_of_token(recipe: Recipe, compute: Compute) -> float:
    """Return the seconds per token of the recipe's network. A large network is not built: a small one of two of its
    layers is timed, and its seconds are multiplied by the ratio of both networks' arithmetic."""
    compute.apply()
    whole, device = network_of(recipe), compute.device if compute.is_here else "cpu"
    config = shrunk(whole, _LARGEST)
    model = Transformer(config).to(device=device, dtype=compute.dtype)
    if compute.is_here:
        compute_with(model, recipe.precision)
    length = recipe.pretrain.length if config is whole else min(recipe.pretrain.length, _LONGEST)
    shape = (recipe.pretrain.batch if config is whole else max(1, _LONGEST // length), length)
    tokens = torch.randint(config.vocab_size, shape, device=device)

    def step() -> None:
        loss = model(tokens).logits_btv.mean()
        loss.backward()
        if device == "cuda":  # kernels are launched asynchronously
            torch.cuda.synchronize()

    step()  # warms up
    begun = time.perf_counter()
    for _ in range(_STEPS):
        step()
    taken = (time.perf_counter() - begun) / (_STEPS * tokens.numel())
    return taken * operations_per_token(whole, recipe.pretrain.length) / operations_per_token(config, length)


async def _seconds_of_grading(recipe: Recipe) -> float:
    """Return the seconds per grading of a reference solution. Raise SandboxError if there is no working sandbox."""
    with TemporaryDirectory(prefix="etude-probe-") as place:
        paths = RunPaths(Path(place))
        source = open_source(recipe.tasks.source, recipe.tasks)
        tasks = make_tasks(source, Split.TRAIN, _AT_ONCE, recipe.seed, paths.tasks)
        setup, grader = open_setup(recipe.model_copy(update={"sandbox": without_fleet(recipe.sandbox)}), paths)

        async def grade(task: Task, times: int) -> None:
            for _ in range(times):
                verdict = await grader.grade(task, reference_diff(task), fresh=True)
                if verdict.judgement is Judgement.ERROR:
                    raise SandboxError(verdict.reason)

        try:
            await asyncio.gather(*(grade(task, 1) for task in tasks))  # warms up: prepares images and environments
            begun = time.perf_counter()
            await asyncio.gather(*(grade(task, _GRADINGS) for task in tasks))
            return (time.perf_counter() - begun) / (_AT_ONCE * _GRADINGS)
        finally:
            await setup.sandboxes.close()


def _seconds_of_document(seed: int) -> float:
    begun = time.perf_counter()
    for index in range(_DOCUMENTS):
        make_document(seed, index)
    return (time.perf_counter() - begun) / _DOCUMENTS
