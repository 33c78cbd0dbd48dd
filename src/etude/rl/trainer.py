"""The trainer service: each call takes one batch of groups and publishes one version of the weights.

Invariants: a step's checkpoint is on disk before its version is published and before the call returns. So a trainer
that died and was restarted knows which step it is at, and neither repeats nor skips one. The same batch from the same
checkpoint gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from etude.journal import Journal, RunPaths, Waiting
from etude.model import Transformer, compute_with, load_hf, prepare, save_hf, serve, served_state
from etude.recipe import Recipe
from etude.rl.batch import RowBatch, TrainingGroup, microbatches
from etude.rl.forward import forward, predicting_logits
from etude.rl.loss import policy_loss
from etude.rl.measure import StepMeter, most_sampled_version, probe_replay, reference_kl
from etude.rl.scoring import ScoredBatch, score_groups
from etude.training import Compute, MasterWeights, build_optimizer
from etude.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from etude.weights import CorruptVersion, RawTensor, Tensors, WeightStore
from etude.weights.torch_bridge import from_state_dict, into_module


class RlTrainer:
    def __init__(self, run_folder: str, recipe: dict[str, Any], compute: dict[str, Any], store: str) -> None:
        self.paths = RunPaths(Path(run_folder))
        self.recipe = Recipe.model_validate(recipe)
        self.compute = Compute(**compute)
        self.rl = self.recipe.rl
        self.journal = Journal(self.paths.journal, "trainer")
        self.step = 0
        """Number of steps done; also the version published last."""
        self.metrics: dict[str, Any] = {}
        torch.set_num_threads(self.compute.threads)
        # Not use_deterministic_algorithms: it imports the compiler, which takes seconds and creates folders of its own.
        torch.set_deterministic_debug_mode("error")
        self.model = load_hf(self.paths.model("sft"))
        compute_with(self.model, self.recipe.precision)
        self.reference = self._served() if self.rl.reward.kl else None
        self.optimizer = build_optimizer(
            self.model,
            self.rl.optimizer,
            self.rl.steps * self.rl.minibatches,
            masters=MasterWeights(self.model, self.compute.dtype),
        )
        self.probed: Transformer | None = None
        """A second network, used to measure the effect of expert replay; created when the first measurement is due."""
        self._resume()
        self.store = WeightStore(store, anchor_every=self.recipe.weights.anchor_every)
        self._drop_damaged_version()
        self.metrics |= self._publish(self._tensors())
        self._idle: Waiting | None = None
        self._wait_for_rollouts()

    def status(self) -> dict[str, Any]:
        return {"step": self.step, "metrics": self.metrics}

    def train(self, step: int, groups: Sequence[TrainingGroup]) -> dict[str, Any]:
        """Train step `step` (counted from 0) and publish version step + 1. A step already done is not repeated."""
        torch.set_num_threads(self.compute.threads)
        if step == self.step - 1:
            return self.metrics
        if step != self.step:
            raise ValueError(f"asked to train step {step}, but {self.step} is next")
        self._end_of_waiting()
        begun = time.monotonic()
        with torch.no_grad():
            kls = reference_kl(self.reference, groups, self.rl) if self.reference is not None else {}
        batch = score_groups(groups, self.rl, kls)
        meter = StepMeter()
        probe = self._probe(batch) if step % self.rl.probe_every == 0 else {}
        for rows in batch.minibatches(self.rl.minibatches):
            self.optimizer.zero_grad()
            for part in microbatches(rows, self.rl.microbatch_tokens):
                self._accumulate(part, meter)
            if rows:
                meter.optimizer(self.optimizer.step())
        tensors = self._tensors()  # raises on unsound weights before the step has written anything
        self.step += 1
        trained = time.monotonic() - begun
        self.metrics = {**batch.summary(self.step - 1), **meter.summary(), **probe, "train_seconds": trained}
        self._save()
        self.metrics |= self._publish(tensors)
        self.journal.metrics(step=self.step, **{k: v for k, v in self.metrics.items() if isinstance(v, int | float)})
        self._wait_for_rollouts()
        return self.metrics

    def republish(self) -> dict[str, Any]:
        """Publish the current version again, after its stored copy turned out to be damaged."""
        self.store.withdraw(self.step)
        self.journal.event("version_republished", version=self.step)
        return self._publish(self._tensors())

    def export(self) -> str:
        """Write the current step's weights as a Hugging Face checkpoint, and return its folder."""
        self._end_of_waiting()
        self.optimizer.masters.restore()
        folder = self.paths.model("rl")
        save_hf(self.model, folder, self.paths.root)
        return str(folder)

    def _accumulate(self, part: RowBatch, meter: StepMeter) -> None:
        output = forward(self.model, part, self.rl.replay.mode, self.rl.replay.threshold)
        parts = policy_loss(
            predicting_logits(self.model, output, part),
            torch.from_numpy(part.tokens_bt),
            torch.from_numpy(part.mask_bt),
            torch.from_numpy(part.logprobs_bt),
            torch.from_numpy(part.advantages_b),
            temperature=self.rl.temperature,
            ratio_cap=self.rl.ratio_cap,
            trust=self.rl.trust,
            constant=self.rl.loss_constant,
        )
        parts.loss.backward()
        meter.add(parts, output)

    def _probe(self, batch: ScoredBatch) -> dict[str, float]:
        version = most_sampled_version(batch.rows)
        if version is None:
            return {}
        if self.probed is None:
            self.probed = self._served()
        into_module(self.probed, self.store.read(version))
        prepare(self.probed)
        with torch.no_grad():
            return probe_replay(self.probed, batch.rows, version, self.rl)

    def _served(self) -> Transformer:
        """Load the model that RL starts from, and prepare it for inference with `serve`, as the engine does."""
        model = load_hf(self.paths.model("sft"), dtype=self.compute.dtype)
        compute_with(model, self.recipe.precision)
        serve(model)
        return model

    def _save(self) -> None:
        state = {"optimizer": self.optimizer.state_dict(), "buffers": dict(self.model.named_buffers())}
        folder = self.paths.checkpoints("rl")
        save_checkpoint(folder, self.step, {**state, "metrics": self.metrics}, keep=self.rl.keep_checkpoints)

    def _resume(self) -> None:
        found = latest_checkpoint(self.paths.checkpoints("rl"))
        if found is None:
            return
        self.step, path = found
        state = load_checkpoint(path)
        self.optimizer.load_state_dict(state["optimizer"])
        own = dict(self.model.named_buffers())
        for name, value in state["buffers"].items():
            own[name].copy_(value)
        self.metrics = state["metrics"]

    def _wait_for_rollouts(self) -> None:
        """Begin a wait in the journal. It lasts until the next step starts, or until RL ends."""
        self._idle = self.journal.waiting(on="rollouts", deadline=self.recipe.harness.wall_seconds * 4).__enter__()

    def _end_of_waiting(self) -> None:
        if self._idle is not None:
            self._idle.__exit__(None, None, None)
            self._idle = None

    def _drop_damaged_version(self) -> None:
        """Delete the current weight version from the store if its stored copy is damaged. The run goes on: the
        trainer's checkpoint holds the same weights, so the version can be published again."""
        if self.step in self.store.versions():
            try:
                self.store.read(self.step)
            except CorruptVersion as error:
                self.journal.event("version_damaged", version=self.step, reason=str(error))
                self.store.withdraw(self.step)

    def _tensors(self) -> dict[str, RawTensor]:
        return from_state_dict(served_state(self.model))

    def _publish(self, tensors: Tensors) -> dict[str, Any]:
        """Publish the current weights as version `step`, unless an earlier process of this run already did."""
        versions = [v for v in self.store.versions() if v < self.step]
        try:
            base = (versions[-1], self.store.read(versions[-1])) if versions else None
        except CorruptVersion as error:
            self.journal.event("version_damaged", version=versions[-1], reason=str(error))
            base = None
        manifest = self.store.publish(self.step, tensors, base=base)
        return {
            "version": self.step,
            "delta": manifest.kind == "delta",
            "delta_share": manifest.bytes_stored / manifest.bytes_full,
            "share_changed": manifest.share_changed,
        }
