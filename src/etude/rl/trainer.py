"""The trainer service: each call takes one batch of groups and publishes one version of the weights.

Invariants: a step's version is published before the call returns. The same batch from the same weights and moments
gives the same bits. So checkpoints can be minutes apart: a trainer that was restarted is at the step of its newest
checkpoint, and the driver sends it the batches since then again, whose versions are published already.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from etude.journal import Journal, RunPaths, Waiting
from etude.model import (
    Transformer,
    adapter_state,
    begin_adapters,
    changing_buffers,
    compile_parts,
    compute_with,
    load_hf,
    prepare,
    save_trained,
    serve,
    served_state,
    survey,
    with_adapters,
)
from etude.pretrain.draft import heads_learn
from etude.pretrain.memory import fit_passes
from etude.recipe import Recipe
from etude.rl.batch import RowBatch, TrainingGroup, microbatches
from etude.rl.drafts import draft_loss, drafted_tokens
from etude.rl.forward import SampledTokens, forward, predicting_hidden
from etude.rl.loss import policy_loss
from etude.rl.measure import StepMeter, most_sampled_version, probe_replay, reference_kl
from etude.rl.memory import pass_of, told
from etude.rl.run import evaluated_steps
from etude.rl.scoring import ScoredBatch, score_groups
from etude.rl.trust import trust_region
from etude.training import Compute, MasterWeights, TrainingError, build_optimizer, told_when_short
from etude.training.checkpoint import latest_checkpoint, load_checkpoint, require_finite, save_checkpoint
from etude.weights import CorruptVersion, HeldVersion, Tensors, VersionExists, WeightStore
from etude.weights.torch_bridge import StateViews, into_module, to_torch

_SAVE_SHARE = 20
"""Checkpoints are at least this many times as far apart as the last one took to write, so that those of a large model
take no more than a twentieth of the time."""


Policy = Transformer | dict[str, torch.Tensor]
"""A policy beside the one that is trained: a network of its own, or adapters, which need no second base in memory."""


class OutOfStep(TrainingError):
    """The trainer was asked for a step that is not its next one."""


class RlTrainer:
    def __init__(self, run_folder: str, recipe: dict[str, Any], compute: dict[str, Any], store: str) -> None:
        self.paths = RunPaths(Path(run_folder))
        self.recipe = Recipe.model_validate(recipe)
        self.compute = Compute(**compute)
        self.rl = self.recipe.rl
        self.journal = Journal(self.paths.journal, "trainer")
        self.step = 0
        """Number of steps done; also the number of the version that these weights are."""
        self.metrics: dict[str, Any] = {}
        torch.set_num_threads(self.compute.threads)
        with self._told_when_short("the start of RL's trainer"):
            self._open(store)

    def _open(self, store: str) -> None:
        self.compute.require_determinism(self.recipe.compute)
        self.model = self._begun(load_hf(self._started_from(), device=self.compute.device))
        compute_with(self.model, self.recipe.precision)
        work = pass_of(self.recipe, self.compute.dtype)
        fit_passes(self.model, self.recipe.compute, work)
        if self.recipe.compute.compile:
            compile_parts(self.model)
        self.reference = self._policy() if self.rl.reward.kl else None
        self.optimizer = build_optimizer(
            self.model,
            self.rl.optimizer,
            self.rl.steps * self.rl.minibatches,
            masters=MasterWeights(self.model, self.compute.dtype, self.recipe.compute.offload),
        )
        self.probed: Policy | None = None
        """The policy whose expert replay was measured last; it exists from the first measurement on."""
        self._resume()
        self._saved, self._save_seconds = time.monotonic(), 0.0
        anchor_every, threads = self.recipe.weights.anchor_every, self.compute.threads
        self.store = WeightStore(store, anchor_every=anchor_every, threads=threads)
        self.store.claim()
        self._held = HeldVersion(store)
        """The version published last: the next one is stored as a delta on it."""
        self._drop_damaged_versions()
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
            raise OutOfStep(f"asked to train step {step}, but {self.step} is next")
        self._end_of_waiting()
        with self._told_when_short(f"step {step} of RL"):
            self._train(step, groups)
        self._wait_for_rollouts()
        return self.metrics

    def _train(self, step: int, groups: Sequence[TrainingGroup]) -> None:
        begun = time.monotonic()
        with torch.no_grad():
            kls = self._kls(groups) if self.reference is not None else {}
        batch = score_groups(groups, self.rl, kls)
        meter = StepMeter()
        probe = self._probe(batch) if step % self.rl.probe_every == 0 else {}
        for rows in batch.minibatches(self.rl.minibatches):
            self.optimizer.zero_grad()
            drafted = drafted_tokens(rows, len(self.model.mtp))
            for part in microbatches(rows, self.rl.microbatch_tokens):
                self._accumulate(part, meter, drafted)
            if rows:
                meter.optimizer(self.optimizer.step())
        # Both raise on unsound numbers before the step has written anything.
        tensors = self._tensors()
        require_finite(self.optimizer.state_dict(), f"no version is made of step {step}")
        self.step += 1
        trained = time.monotonic() - begun
        self.metrics = {**batch.summary(self.step - 1), **meter.summary(), **probe, "train_seconds": trained}
        if self._save_is_due():
            self._save()
        self.metrics |= self._publish(tensors)
        if self.rl.take_turns and self.compute.device == "cuda":
            torch.cuda.empty_cache()
        self.journal.metrics(step=self.step, **{k: v for k, v in self.metrics.items() if isinstance(v, int | float)})

    def republish(self) -> dict[str, Any]:
        """Publish the current version again, after its stored copy turned out to be damaged."""
        self.store.withdraw(self.step)
        self._held.drop()  # what it stands on may be damaged too
        self.journal.event("version_republished", version=self.step)
        return self._publish(self._tensors())

    def export(self) -> str:
        """Write the current weights as a Hugging Face checkpoint, and return its folder."""
        self._end_of_waiting()
        self.optimizer.masters.restore()
        folder = self.paths.model("rl")
        save_trained(self.model, folder, self.paths.model("base"), self.paths.root)
        return str(folder)

    def _told_when_short(self, what: str) -> AbstractContextManager[None]:
        def needed() -> str:
            return told(self.recipe, survey(self._started_from()).config, self.compute.dtype)

        return told_when_short(what, self.compute.device, needed)

    def _accumulate(self, part: RowBatch, meter: StepMeter, drafted: Sequence[torch.Tensor]) -> None:
        output = forward(self.model, part, self.rl.replay.mode, self.rl.replay.threshold)
        sampled = SampledTokens.of(part, self.model.device)
        parts = policy_loss(
            predicting_hidden(output, sampled),
            output.head,
            sampled,
            temperature=self.rl.temperature,
            ratio_cap=self.rl.ratio_cap,
            trust=trust_region(self.rl),
            constant=self.rl.loss_constant,
        )
        parts.loss.backward()
        self.optimizer.accumulate()
        meter.add(parts, output)
        if self.rl.draft_loss and heads_learn(self.model) and part.tokens_bt.shape[1] > len(self.model.mtp) + 1:
            loss, accepted = draft_loss(self.model, output, part, drafted)
            (self.rl.draft_loss * loss).backward()
            self.optimizer.accumulate()
            meter.drafts(loss, accepted)

    def _probe(self, batch: ScoredBatch) -> dict[str, float]:
        version = most_sampled_version(batch.rows)
        if version is None or not self.model.config.moe_layers:
            return {}
        if self.probed is None:
            self.probed = self._policy()
        tensors = self.store.read(version)
        if isinstance(self.probed, Transformer):
            into_module(self.probed, tensors)
            prepare(self.probed)
        else:
            self.probed = {name: to_torch(raw) for name, raw in tensors.items()}
        with torch.no_grad(), self._as(self.probed) as model:
            return probe_replay(model, batch.rows, version, self.rl)

    def _started_from(self) -> Path:
        return self.paths.model(self.recipe.before("rl"))

    def _begun(self, model: Transformer) -> Transformer:
        return begin_adapters(model, self.recipe.lora, self.recipe.seed)

    def _policy(self) -> Policy:
        """Return the policy that RL starts from: its adapters, if only these are trained, else the model that RL starts
        from, prepared for inference with `serve` as the engine does."""
        if adapters := adapter_state(self.model):
            return {name: tensor.detach().clone() for name, tensor in adapters.items()}
        model = load_hf(self._started_from(), dtype=self.compute.dtype, device=self.compute.device)
        compute_with(model, self.recipe.precision)
        serve(model)
        return model

    @contextmanager
    def _as(self, policy: Policy) -> Iterator[Transformer]:
        """Context with a network that computes this policy: for adapters the trained network itself, which has them
        for that long."""
        if isinstance(policy, Transformer):
            yield policy
            return
        with with_adapters(self.model, policy):
            yield self.model

    def _kls(self, groups: Sequence[TrainingGroup]) -> dict[str, float]:
        assert self.reference is not None
        with self._as(self.reference) as reference:
            return reference_kl(reference, groups, self.rl)

    def _save_is_due(self) -> bool:
        if self.step == self.rl.steps or not self.rl.checkpoint_seconds:
            return True
        return time.monotonic() - self._saved >= max(self.rl.checkpoint_seconds, _SAVE_SHARE * self._save_seconds)

    def _save(self) -> None:
        begun = time.monotonic()
        state = {"optimizer": self.optimizer.state_dict(), "buffers": changing_buffers(self.model)}
        folder = self.paths.checkpoints("rl")
        save_checkpoint(folder, self.step, {**state, "metrics": self.metrics}, keep=self.rl.keep_checkpoints)
        self._saved = time.monotonic()
        self._save_seconds = self._saved - begun

    def _resume(self) -> None:
        found = latest_checkpoint(self.paths.checkpoints("rl"))
        if found is None:
            return
        self.step, path = found
        state = load_checkpoint(path, checked=True)
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

    def _drop_damaged_versions(self) -> None:
        """Delete the newest weight versions from the store whose stored copies are damaged, since an engine starts with
        the newest. The run goes on: the current one is published again from the checkpoint, and later ones once their
        steps are trained again."""
        for version in reversed([v for v in self.store.versions() if v >= self.step]):
            try:
                self.store.read(version)
                return
            except CorruptVersion as error:
                self.journal.event("version_damaged", version=version, reason=str(error))
                self.store.withdraw(version)

    def _tensors(self) -> Tensors:
        return StateViews(served_state(self.model))

    def _newest(self, versions: Iterable[int]) -> tuple[int, Tensors] | None:
        """Return the newest of these versions, its number and tensors; None if there is none, or if it is damaged."""
        if (newest := max(versions, default=None)) is None:
            return None
        try:
            return newest, self.store.read(newest)
        except CorruptVersion as error:
            self.journal.event("version_damaged", version=newest, reason=str(error))
            return None

    def _collect(self) -> None:
        """Delete the versions that nobody needs any more, if the recipe asks for it."""
        if not self.recipe.weights.keep:
            return
        sampled = range(self.step - self.rl.max_staleness - 1, self.step)
        if gone := self.store.collect(self.recipe.weights.keep, {*sampled, *evaluated_steps(self.rl)}):
            self.journal.event("versions_deleted", versions=gone)

    def _publish(self, tensors: Tensors) -> dict[str, Any]:
        """Publish the current weights as version `step`, unless an earlier process of this run already did."""
        published, base = self.store.versions(), None
        if self.step not in published:
            base = self._held.base or self._newest(v for v in published if v < self.step)
        elif not tensors.keys() & {entry.name for entry in self.store.manifest(self.step).tensors}:
            tensors = StateViews(served_state(self.model, published=False))  # the names that older runs have
        try:
            manifest = self.store.publish(self.step, tensors, base=base, held=self._held)
        except VersionExists as error:
            if self.step == 0:  # the store is that of another run
                raise
            if self.rl.mode == "sync":
                raise TrainingError(
                    f"step {self.step - 1} was trained again and gave other weights than before; rl.mode = sync "
                    "promises equal ones, on the same machine with the same number of threads"
                ) from error
            # Engines have sampled with the stored weights, so those stay. The loss compares with the engine's log-probs
            # anyway.
            self.journal.event("version_differs", version=self.step)
            self._held.drop()
            manifest = self.store.manifest(self.step)
        self._collect()
        return {
            "version": self.step,
            "delta": manifest.kind == "delta",
            "delta_share": manifest.bytes_stored / manifest.bytes_full,
            "share_changed": manifest.share_changed,
        }
