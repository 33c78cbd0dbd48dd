"""Continued SFT in rounds: each round trains on a set of traces and publishes one version of the weights.

A round is one pass over its traces with the SFT loss, run by a call of `train`. The round's checkpoint is written
before its version is published, and both happen before `train` returns. So a service that dies resumes after the last
complete round, and a finished round is never repeated. The learning rate decays with the share of the total time that
is used up, which the caller passes to `train`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.corpus import Mixture, TraceRows
from etude.journal import Journal, RunPaths
from etude.model import (
    begin_adapters,
    changing_buffers,
    compile_parts,
    compute_with,
    load_hf,
    save_trained,
    served_state,
    survey,
)
from etude.pretrain.context import Rows
from etude.pretrain.memory import fit_passes, pass_of, told
from etude.pretrain.sft import demonstration_losses
from etude.recipe import Recipe
from etude.trace.file import read_traces
from etude.trace.trace import Trace
from etude.training import (
    Compute,
    MasterWeights,
    back_propagate,
    build_optimizer,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    told_when_short,
)
from etude.weights import WeightStore
from etude.weights.torch_bridge import StateViews

_UNKNOWN_END = 1_000_000
"""Total number of steps assumed in the first round, before it is known how many fit in the time. It is so large that
the learning rate does not decay."""


class ContinuedTrainer:
    def __init__(self, run_folder: str, recipe: dict[str, Any], compute: dict[str, Any], store: str) -> None:
        self.paths = RunPaths(Path(run_folder))
        self.recipe = Recipe.model_validate(recipe)
        self.compute = Compute(**compute)
        self.journal = Journal(self.paths.journal, "trainer")
        self.rounds = 0
        """Number of finished rounds, which is also the number of the last published version."""
        self.metrics: dict[str, Any] = {}
        self.compute.apply()
        with self._told_when_short("the start of continued SFT"):
            self._open(store)

    def _open(self, store: str) -> None:
        started_from = load_hf(self.paths.model(self.recipe.before("continued")), device=self.compute.device)
        self.model = begin_adapters(started_from, self.recipe.lora, self.recipe.seed)
        compute_with(self.model, self.recipe.precision)
        work = pass_of(self.recipe, "continued", self.model.config, self.compute.dtype)
        fit_passes(self.model, self.recipe.compute, work)
        if self.recipe.compute.compile:
            compile_parts(self.model)
        self.masters = MasterWeights(self.model, self.compute.dtype, self.recipe.compute.offload)
        self.optimizer = build_optimizer(
            self.model, self.recipe.continued.optimizer, _UNKNOWN_END, masters=self.masters
        )
        self._resume()
        self.store = WeightStore(store, anchor_every=self.recipe.weights.anchor_every, threads=self.compute.threads)
        self.store.claim()
        self._publish(served_state(self.model))

    def status(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "metrics": self.metrics}

    def train(
        self, number: int, demonstrations: str, samples: str, passed: list[str], used_share: float
    ) -> dict[str, Any]:
        """Train round `number` (counted from 0) and publish version `number` + 1.

        The round trains on all traces in the folder `demonstrations`, and on those in the folder `samples` whose ids
        are in `passed` (samples that solved their task). `used_share` is the share of the stage's time that is used up;
        the learning rate decays with it. A repeated call for the last finished round only returns its metrics.
        """
        if number == self.rounds - 1:
            return self.metrics
        if number != self.rounds:
            raise ValueError(f"asked to train round {number}, but {self.rounds} is next")
        self.compute.apply()
        traces = list(read_traces(Path(demonstrations)))
        if passed:
            traces += read_traces(Path(samples), only=passed)
        with self._told_when_short(f"round {number} of continued SFT"):
            losses = self._pass(sorted(traces, key=lambda trace: trace.id), number, used_share)
            state = served_state(self.model)  # raises on unsound weights before the round has written anything
        self.rounds += 1
        self.metrics = {
            "traces": len(traces),
            "steps": len(losses),
            "loss": float(np.mean(losses)) if losses else 0.0,
            "lr": self.optimizer.rate(),
        }
        self._save()
        self._publish(state)
        self.journal.metrics(step=self.rounds, **self.metrics)
        return self.metrics

    def export(self) -> str:
        """Write a Hugging Face checkpoint and return its folder."""
        self.masters.restore()
        folder = self.paths.model("continued")
        save_trained(self.model, folder, self.paths.model("base"), self.paths.root)
        return str(folder)

    def _told_when_short(self, what: str) -> AbstractContextManager[None]:
        def needed() -> str:
            network = survey(self.paths.model(self.recipe.before("continued"))).config
            return told(self.recipe, "continued", network, self.compute.dtype)

        return told_when_short(what, self.compute.device, needed)

    def _pass(self, traces: list[Trace], number: int, used_share: float) -> list[float]:
        stage = self.recipe.sft
        rows = TraceRows(traces, other_token_loss=stage.other_token_loss)
        stream = rows.stream(f"round {number}", length=stage.length, seed=self.recipe.seed)
        batches, steps = Mixture.of({stream: 1.0}), -(-stream.epoch_rows() // stage.batch)
        if self.optimizer.finished:
            self.optimizer.total_steps = round(self.optimizer.finished / max(used_share, 1e-3))
        losses = []
        for step in range(steps):
            self.optimizer.zero_grad()
            batch = Rows.of(batches.batch(step, stage.batch), self.compute.device)
            loss, _, _ = back_propagate(self.optimizer, demonstration_losses(self.model, batch, stage))
            self.optimizer.step()
            losses.append(loss)
        return losses

    def _save(self) -> None:
        state = {"optimizer": self.optimizer.state_dict(), "buffers": changing_buffers(self.model)}
        save_checkpoint(self.paths.checkpoints("continued"), self.rounds, {**state, "metrics": self.metrics})

    def _resume(self) -> None:
        found = latest_checkpoint(self.paths.checkpoints("continued"))
        if found is None:
            return
        self.rounds, path = found
        state = load_checkpoint(path)
        self.optimizer.load_state_dict(state["optimizer"])
        own = dict(self.model.named_buffers())
        for name, value in state["buffers"].items():
            own[name].copy_(value)
        self.metrics = state["metrics"]

    @torch.no_grad()
    def _publish(self, state: dict[str, torch.Tensor]) -> None:
        """Publish the weights in `state` as version `self.rounds`, unless it was published before a restart."""
        if self.rounds not in self.store.versions():
            self.store.publish(self.rounds, StateViews(state))
