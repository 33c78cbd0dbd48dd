"""The step loop of every supervised stage.

Invariant: the weights after step n depend only on the recipe, the seed and the inputs. A batch is a function of its
step, and a checkpoint holds everything else (master weights, moments, buffers, random generators). So neither the
timing of checkpoints nor a kill changes a bit of the result.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from etude.journal import JournalError, append_rows, read_rows
from etude.recipe.training import StageRecipe
from etude.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from etude.training.errors import CheckpointError, NonFiniteError
from etude.training.files import disk_error, write_file
from etude.training.optimizers import Optim

_METRICS, _CHECKPOINTS = "metrics.jsonl", "checkpoints"


@dataclass(frozen=True, slots=True)
class StepLoss:
    """The loss of one microbatch. Those of a step's microbatches add up to the step's, and so do their metrics."""

    loss: Tensor
    """A scalar to call `backward` on."""
    tokens: int
    """Number of positions processed, padding included, from which the throughput is computed."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    step: int
    """Number of finished steps."""
    total: int
    loss: float
    tokens_per_second: float
    """Throughput since the previous Progress that the stage reported."""
    metrics: dict[str, float] = field(default_factory=dict)


def back_propagate(optim: Optim, parts: Iterable[StepLoss]) -> tuple[float, int, dict[str, float]]:
    """Back-propagate the microbatches of a step, each before the next one is computed, so that one graph exists at a
    time. Return the sums of their losses, tokens and metrics."""
    loss, tokens, metrics = 0.0, 0, dict[str, float]()
    for part in parts:
        part.loss.backward()
        optim.accumulate()
        value = float(part.loss.detach())  # after the backward pass has begun, because a GPU is waited for here
        if not math.isfinite(value):
            raise NonFiniteError(f"the loss of step {optim.finished} is {value}: lower the learning rate")
        loss, tokens = loss + value, tokens + part.tokens
        for name, share in part.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + share
    return loss, tokens, metrics


class StageRunner:
    """Runs a stage's steps in its folder: resumes, saves checkpoints at intervals, and appends to metrics.jsonl.

    `compute_loss(step)` is called with 0, 1, ... and iterates over the step's microbatches; `after_step(step)` runs
    after the update (for example to balance routers) and may change buffers of the module, which are part of a
    checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        recipe: StageRecipe,
        module: nn.Module,
        optim: Optim,
        compute_loss: Callable[[int], Iterable[StepLoss]],
        *,
        identity: str = "",
        earlier_identity: str = "",
        after_step: Callable[[int], None] | None = None,
    ) -> None:
        """`identity` is a digest of all that the result depends on; `resume` refuses a checkpoint with another one,
        but for `earlier_identity`, the digest that an earlier version left of the same."""
        self.folder, self.total = folder, optim.total_steps
        self._recipe, self._module, self._optim = recipe, module, optim
        self._compute_loss, self._after_step = compute_loss, after_step
        self._identity, self._accepted = identity, (identity, earlier_identity or identity)
        self.step = 0

    def resume(self) -> int:
        """Load the newest complete checkpoint, if there is one, and return the number of finished steps."""
        found = latest_checkpoint(self.folder / _CHECKPOINTS)
        if found is not None:
            step, path = found
            state = load_checkpoint(path)
            if state["identity"] not in self._accepted:
                raise CheckpointError(
                    f"checkpoint {path} was made with another recipe, code or input: use another run folder, "
                    f"or delete {self.folder} to start the stage again"
                )
            self._optim.load_state_dict(state["optim"])
            for name, buffer in self._module.named_buffers():
                if name in state["buffers"]:
                    buffer.copy_(state["buffers"][name])
            torch.set_rng_state(state["torch_generator"])
            self.step = step
        _cut_metrics(self.folder / _METRICS, self.step)
        return self.step

    def run(self) -> Iterator[Progress]:
        """Run the remaining steps. Yields every `log_every` steps and after the last step, and saves the final state.

        Stop iterating to stop training; steps since the last checkpoint are then repeated on resume.
        """
        reported, tokens, saved = time.monotonic(), 0, time.monotonic()
        while self.step < self.total:
            loss, metrics, read = self._one_step()
            tokens += read
            last = self.step == self.total
            if last or self.step % self._recipe.log_every == 0:
                now = time.monotonic()
                rate = tokens / max(now - reported, 1e-9)
                progress = Progress(self.step, self.total, loss, round(rate, 1), metrics)
                self._log(progress)
                reported, tokens = now, 0
                yield progress
            if last or time.monotonic() - saved >= self._recipe.checkpoint_seconds:
                self.save()
                saved = time.monotonic()

    def save(self) -> None:
        state: dict[str, Any] = {
            "identity": self._identity,
            "optim": self._optim.state_dict(),
            "buffers": dict(self._module.named_buffers()),
            "torch_generator": torch.get_rng_state(),
        }
        save_checkpoint(self.folder / _CHECKPOINTS, self.step, state)

    def _one_step(self) -> tuple[float, dict[str, float], int]:
        self._optim.zero_grad()
        loss, tokens, metrics = back_propagate(self._optim, self._compute_loss(self.step))
        taken = self._optim.step()
        if self._after_step is not None:
            self._after_step(self.step)
        self.step += 1
        return loss, metrics | taken, tokens

    def _log(self, progress: Progress) -> None:
        values = {"step": progress.step, "loss": progress.loss, "tokens_per_second": progress.tokens_per_second}
        try:
            append_rows(self.folder / _METRICS, [values | progress.metrics])
        except OSError as error:
            raise disk_error(self.folder / _METRICS, 0, error) from error


def _cut_metrics(path: Path, step: int) -> None:
    """Remove the rows after `step`, the last checkpoint's, because these steps are logged again. Rows from a damaged
    line on are removed too: a damaged log must not keep a stage from resuming."""
    kept: list[str] = []
    with suppress(JournalError):
        kept.extend(json.dumps(row) + "\n" for row in read_rows(path) if row["step"] <= step)
    write_file(path, "".join(kept).encode())
