"""The trainer service: one batch in, one version out, each step once, the same bits from the same checkpoint."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.rl.make import LENGTH, PROMPT, make_groups, open_trainer, tiny_recipe

from etude.journal import read_journal
from etude.model import Head, PoisonedWeights, Transformer, head_logprobs, read_config, save_hf, served_state
from etude.recipe.precision import PrecisionRecipe
from etude.rl.batch import TrainingGroup, TrainingMember, microbatches
from etude.rl.drafts import drafted_tokens
from etude.rl.forward import SampledTokens, forward, predicting_hidden
from etude.rl.log import RlLog, Sampled
from etude.rl.measure import StepMeter
from etude.rl.reconciler import Finished
from etude.rl.scoring import score_groups
from etude.rl.trainer import OutOfStep, RlTrainer
from etude.rollout import RolloutJob, RolloutResult
from etude.tasks import Split
from etude.trace import UNKNOWN_EXPERT
from etude.training import NonFiniteError, TrainingError
from etude.training.checkpoint import latest_checkpoint
from etude.weights import Fenced, Tensors, VersionExists, WeightStore
from etude.weights.torch_bridge import from_state_dict, from_torch

KEYS = {"loss", "entropy", "mismatch_mean", "mismatch_p99", "overridden", "refused", "grad_norm", "lr", "solved"}
KEYS |= {"masked", "dropped_groups", "trained_tokens", "staleness", "version", "delta", "delta_share", "share_changed"}
KEYS |= {"p99_off", "p99_on", "p99_filter", "train_seconds", "draft_loss", "draft_accepted"}


RECIPE = tiny_recipe()
PUBLISHED = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.2,
}


@pytest.fixture
def trainer(tmp_path) -> RlTrainer:
    return open_trainer(tmp_path, RECIPE)


@pytest.fixture
def groups(trainer) -> list[TrainingGroup]:
    """The batch of the first step."""
    return make_groups(RECIPE, trainer.model, 0)


def weights(trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def published_weights(trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.swapped_state().items()}


def equal(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_step_is_measured_and_published(trainer, groups, tmp_path) -> None:
    assert WeightStore(str(tmp_path / "weights")).latest() == 0, "version 0 is there before the first step"
    metrics = trainer.train(0, groups)
    assert metrics.keys() >= KEYS
    assert (metrics["masked"], metrics["dropped_groups"], metrics["dropped_no_spread"]) == (1, 1, 1)
    assert metrics["trained_tokens"] == 20
    assert metrics["rollouts"] == 4
    assert 0 < metrics["entropy"] < math.log(300)
    assert metrics["mismatch_p99"] < 1e-4, "the trainer computes what the engine computed"
    assert metrics["overridden"] == metrics["refused"] == 0
    assert (metrics["version"], metrics["delta"]) == (1, True)
    assert WeightStore(str(tmp_path / "weights")).latest() == 1


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_networks_with_and_without_experts_are_trained(family, tmp_path) -> None:
    """The engine computes what the trainer computes; only what has experts is replayed and probed."""
    config = read_config(PUBLISHED | {"model_type": family, "mlp_only_layers": [0]})
    save_hf(Transformer(config).initialise(0), tmp_path / "stages/sft/model")
    trainer = open_trainer(tmp_path, RECIPE)
    before = weights(trainer)
    metrics = trainer.train(0, make_groups(RECIPE, trainer.model, 0))
    assert metrics["mismatch_p99"] < 1e-4
    assert metrics["version"] == 1
    assert ("p99_filter" in metrics) is (family == "qwen3_moe")
    assert "draft_loss" not in metrics
    assert all(not torch.equal(value, before[name]) for name, value in weights(trainer).items())


def test_it_says_when_it_waited_for_rollouts_up_to_its_end(trainer, groups, tmp_path) -> None:
    def waited() -> int:
        return sum(entry.fields["on"] == "rollouts" for entry in read_journal(tmp_path / "journal", kind="wait"))

    assert waited() == 0, "it still waits"
    trainer.train(0, groups)
    assert waited() == 1
    shutil.copy(tmp_path / "stages/sft/model/config.json", trainer.paths.tokenizer)  # any file: it goes along
    trainer.export()
    assert waited() == 2


def test_the_gradient_raises_what_succeeded_and_lowers_what_failed(trainer, groups, tmp_path) -> None:
    batch = score_groups(groups, RECIPE.rl, {})

    def logprob(positive: bool) -> float:
        rows = [row for row in batch.rows if (row.advantage > 0) is positive]
        part = microbatches(rows, 10_000)[0]
        with torch.no_grad():
            output = forward(trainer.model, part, "off", 0.5)
            sampled = SampledTokens.of(part, trainer.model.device)
            hidden = predicting_hidden(output, sampled)
            return float(head_logprobs(hidden, trainer.model.head, sampled.tokens_n, 1.0).sum())

    before = logprob(True), logprob(False)
    trainer.train(0, groups)
    assert logprob(True) > before[0]
    assert logprob(False) < before[1]


def test_the_gradient_of_many_microbatches_in_bf16_is_their_sum(tmp_path) -> None:
    recipe = tiny_recipe(optimizer={**RECIPE.rl.optimizer.model_dump(), "lr": 1e-30})  # the weights stay
    trainer = open_trainer(tmp_path, recipe, "bfloat16")
    rows = score_groups(make_groups(recipe, trainer.model, 0), recipe.rl, {}).rows
    (part,) = microbatches(rows, 10_000)
    norms = []
    for times in (1, 32):
        trainer.optimizer.zero_grad()
        for _ in range(times):
            trainer._accumulate(part, StepMeter(), drafted_tokens(rows, 1))
        norms.append(trainer.optimizer.step()["grad_norm"] / times)
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


def test_no_step_holds_the_logits_of_a_microbatch(trainer, groups, monkeypatch) -> None:
    rows = []
    for name in ("product", "logits"):
        original = getattr(Head, name)

        def counted(self, hidden, *room, original=original):
            rows.append(hidden.numel() // hidden.shape[-1])
            return original(self, hidden, *room)

        monkeypatch.setattr(Head, name, counted)
    monkeypatch.setattr("etude.model.head_losses._CHUNK_ROWS", 16)
    metrics = trainer.train(0, groups)
    assert max(rows) == 16 < metrics["trained_tokens"]


def test_a_step_done_is_not_repeated_and_none_is_skipped(trainer, groups, tmp_path) -> None:
    metrics = trainer.train(0, groups)
    after = weights(trainer)
    assert trainer.train(0, groups) == metrics
    assert equal(weights(trainer), after)
    with pytest.raises(OutOfStep, match="asked to train step 2, but 1 is next"):
        trainer.train(2, groups)
    again = open_trainer(tmp_path, RECIPE)
    assert again.status()["step"] == 1
    answer = again.train(0, groups)
    assert {k: answer[k] for k in KEYS - {"train_seconds"}} == {k: metrics[k] for k in KEYS - {"train_seconds"}}
    assert equal(weights(again), after)


def test_a_death_between_checkpoint_and_publication_heals(trainer, groups, tmp_path, monkeypatch) -> None:
    def killed(tensors: Tensors) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "_publish", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(0, groups)
    store = WeightStore(str(tmp_path / "weights"))
    assert store.latest() == 0
    again = open_trainer(tmp_path, RECIPE)
    assert store.latest() == 1
    assert again.status()["step"] == 1
    assert again.status()["metrics"].keys() >= KEYS, "what was not published yet is in the metrics all the same"
    published = store.read(1)
    for name, value in published_weights(again).items():
        assert np.array_equal(published[name].data, value.contiguous().view(torch.uint8).numpy().reshape(-1)), name


def test_the_same_batches_give_the_same_bits_across_a_restart(tmp_path) -> None:
    recipe = tiny_recipe()
    one = open_trainer(tmp_path / "one", recipe)
    batches = []
    for step in range(3):
        batches.append(make_groups(recipe, one.model, step))
        one.train(step, batches[-1])
    other = open_trainer(tmp_path / "other", recipe)
    other.train(0, batches[0])
    for step in (1, 2):
        other = open_trainer(tmp_path / "other", recipe)
        other.train(step, batches[step])
    assert equal(weights(one), weights(other))


def test_the_heads_follow_the_trunk_which_does_not_notice(tmp_path, groups) -> None:
    ends, accepted = [], []
    for draft_loss in (1.0, 0.0):
        trainer = open_trainer(tmp_path / str(draft_loss), tiny_recipe(draft_loss=draft_loss))
        before = weights(trainer)
        accepted += [trainer.train(step, groups).get("draft_accepted") for step in range(4)]
        ends.append(weights(trainer))
    trained, untrained = ends
    heads = {name for name in before if name.startswith("mtp.")}
    moved = {name for name in before if not torch.equal(trained[name], untrained[name])}
    assert moved == {name for name in heads if not name.endswith("bias")}, "routers are not balanced in RL"
    assert all(torch.equal(untrained[name], before[name]) for name in heads)
    assert accepted[0] + 0.02 < accepted[3]
    assert accepted[4:] == [None] * 4


def stored(root) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in (root / "weights").glob("v*/*") if file.is_file()}


def out_of_the_log(log: RlLog, groups: list[TrainingGroup]) -> list[TrainingGroup]:
    """The groups as the driver reads them again: written to the log and restored."""
    members = [member for group in groups for member in group.members if member is not None]
    job = RolloutJob("task", Split.TRAIN)
    log.write([Sampled(Finished(0, 0, 0), RolloutResult(job, m.trace, m.verdict)) for m in members])
    found = log.restore({member.trace.id for member in members})
    return [
        replace(group, members=tuple(m and TrainingMember(*found[m.trace.id]) for m in group.members))
        for group in groups
    ]


def test_steps_since_the_last_checkpoint_are_trained_again_to_the_same_bits(tmp_path) -> None:
    recipe = tiny_recipe(checkpoint_seconds=1e9)
    trainer = open_trainer(tmp_path, recipe)
    batches, metrics = [], []
    for step in range(3):
        batches.append(make_groups(recipe, trainer.model, step))
        metrics.append(trainer.train(step, batches[-1]))
    expected, versions = weights(trainer), stored(tmp_path)
    assert latest_checkpoint(trainer.paths.checkpoints("rl")) is None
    again = open_trainer(tmp_path, recipe)
    assert again.status()["step"] == 0
    log = RlLog(tmp_path / "rl")
    for step, batch in enumerate(batches):
        answer = again.train(step, out_of_the_log(log, batch))
        assert answer | {"train_seconds": 0} == metrics[step] | {"train_seconds": 0}
    assert equal(weights(again), expected)
    assert stored(tmp_path) == versions, "each version is there, and is left as it is"
    again.train(3, make_groups(recipe, again.model, 3))
    assert latest_checkpoint(again.paths.checkpoints("rl"))[0] == 4, "the last step is always saved"


def test_a_large_checkpoint_is_written_seldom_however_short_the_interval(trainer, groups, monkeypatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("etude.rl.trainer.time.monotonic", lambda: clock[0])
    trainer.rl = trainer.rl.model_copy(update={"checkpoint_seconds": 5.0})
    trainer.step, trainer._saved, trainer._save_seconds = 1, 1000.0, 2.0
    for waited, due in ((4.9, False), (39.9, False), (40.1, True)):
        clock[0] = 1000.0 + waited
        assert trainer._save_is_due() is due, waited


def test_a_step_reads_no_version_back(trainer, groups, tmp_path, monkeypatch) -> None:
    trainer.probed = None
    monkeypatch.setattr(trainer, "rl", trainer.rl.model_copy(update={"probe_every": 100}))
    trainer.train(0, groups)
    read = []
    monkeypatch.setattr(trainer.store, "read", lambda version, **more: read.append(version))
    assert trainer.train(1, make_groups(RECIPE, trainer.model, 1))["delta"]
    assert read == [], "the last version's tensors are at hand"
    monkeypatch.undo()
    published = WeightStore(str(tmp_path / "weights")).read(2)
    assert all(published[name].equals(from_torch(tensor)) for name, tensor in published_weights(trainer).items())


def publish_other(trainer, version: int) -> Tensors:
    """As if the same step had given other weights before the trainer died."""
    changed = {
        name: value + 1 if value.is_floating_point() else value for name, value in published_weights(trainer).items()
    }
    tensors = from_state_dict(changed)
    trainer.store.publish(version, tensors)
    return tensors


def test_a_run_whose_versions_have_the_names_of_the_network_goes_on(trainer, tmp_path) -> None:
    """As those of older runs have."""
    trainer.store.withdraw(0)
    trainer.store.publish(0, from_state_dict(weights(trainer)))
    again = open_trainer(tmp_path, RECIPE)
    again.train(0, make_groups(RECIPE, again.model, 0))
    store = WeightStore(str(tmp_path / "weights"))
    assert store.read(0).keys() == weights(again).keys()
    assert store.read(1).keys() == published_weights(again).keys()
    assert list(read_journal(tmp_path / "journal", kind="version_differs")) == []


def test_versions_that_nobody_needs_are_deleted(tmp_path) -> None:
    recipe = tiny_recipe(steps=9, evaluate_every=4, max_staleness=0, probe_every=100)
    recipe = recipe.model_copy(update={"weights": recipe.weights.model_copy(update={"keep": 1, "anchor_every": 2})})
    trainer = open_trainer(tmp_path, recipe)
    trainer.store.announce("engine", 2)
    for step in range(7):
        trainer.train(step, make_groups(recipe, trainer.model, step))
    assert trainer.store.versions() == [0, 2, 4, 6, 7], "evaluated, followed, evaluated, sampled with, newest"
    again = open_trainer(tmp_path, recipe)
    with pytest.raises(Fenced):
        trainer.train(7, make_groups(recipe, trainer.model, 7))
    again.train(7, make_groups(recipe, again.model, 7))
    assert again.store.latest() == 8


def test_what_engines_sampled_with_stays_where_arithmetic_does_not_repeat(trainer, groups, tmp_path) -> None:
    published = publish_other(trainer, 1)
    trainer.train(0, groups)
    store = WeightStore(str(tmp_path / "weights"))
    assert all(tensor.equals(published[name]) for name, tensor in store.read(1).items())
    assert [entry.fields["version"] for entry in read_journal(tmp_path / "journal", kind="version_differs")] == [1]
    trainer.train(1, make_groups(RECIPE, trainer.model, 1))
    read = store.read(2)
    assert all(read[name].equals(from_torch(tensor)) for name, tensor in published_weights(trainer).items())


def test_lockstep_promises_bits(tmp_path) -> None:
    recipe = tiny_recipe(mode="sync")
    trainer = open_trainer(tmp_path, recipe)
    publish_other(trainer, 1)
    with pytest.raises(TrainingError, match="step 0 was trained again and gave other weights"):
        trainer.train(0, make_groups(recipe, trainer.model, 0))


def test_the_store_of_another_run_is_refused(trainer, tmp_path) -> None:
    trainer.store.withdraw(0)
    publish_other(trainer, 0)
    with pytest.raises(VersionExists, match="version 0"):
        open_trainer(tmp_path, RECIPE)


def test_damaged_versions_after_the_checkpoint_are_published_again_with_their_steps(tmp_path) -> None:
    recipe = tiny_recipe(checkpoint_seconds=1e9)
    trainer = open_trainer(tmp_path, recipe)
    batches = []
    for step in range(2):
        batches.append(make_groups(recipe, trainer.model, step))
        trainer.train(step, batches[-1])
    damage(tmp_path / "weights" / "v000001")
    again = open_trainer(tmp_path, recipe)
    store = WeightStore(str(tmp_path / "weights"))
    assert store.versions() == [0], "an engine that starts now starts with what can be read"
    for step, batch in enumerate(batches):
        again.train(step, batch)
    read = store.read(2)
    assert all(read[name].equals(from_torch(tensor)) for name, tensor in published_weights(trainer).items())


def test_replay_and_the_reference_are_used_when_the_recipe_says_so(tmp_path) -> None:
    recipe = tiny_recipe(reward={"kl": 0.1}, replay={"mode": "filter", "threshold": 0.9})
    trainer = open_trainer(tmp_path, recipe)
    groups = make_groups(recipe, trainer.model, 0)
    for group in groups:
        for found in group.members:
            if found is not None:
                segment = found.trace.segments[0]
                known = segment.experts != UNKNOWN_EXPERT
                segment.experts = np.where(known, (segment.experts + 2) % 4, segment.experts)
    metrics = trainer.train(0, groups)
    assert metrics["overridden"] + metrics["refused"] > 0, "experts the trainer would not have chosen are counted"
    trained = 2 * (PROMPT + LENGTH - 1)
    assert max(metrics["overridden"], metrics["refused"]) <= trained, "by tokens; the last one of a row has no experts"
    assert metrics["p99_on"] > metrics["p99_off"], "foreign experts are foreign"
    assert 0 < abs(metrics["kl"]) < 1e-3, "measured, and but rounding: the policy is still the reference"


def test_a_batch_in_which_everything_was_dropped_is_a_step_too(trainer, groups, tmp_path) -> None:
    groups = groups[1:]
    before = weights(trainer)
    metrics = trainer.train(0, groups)
    assert metrics["version"] == 1
    assert metrics["trained_tokens"] == 0
    assert equal(weights(trainer), before)


def damage(folder) -> None:
    data = next(folder.glob("data-*.bin"))
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 1
    data.write_bytes(raw)


def test_a_damaged_version_is_published_again_from_the_checkpoint(trainer, groups, tmp_path) -> None:
    trainer.train(0, groups)
    expected, published = weights(trainer), published_weights(trainer)
    for version in ("v000000", "v000001"):  # the version itself, and the one that it stands on
        damage(tmp_path / "weights" / version)
    again = open_trainer(tmp_path, RECIPE)
    assert equal(weights(again), expected)
    read = WeightStore(str(tmp_path / "weights")).read(1)
    assert {name: value for name, value in read.items() if not value.equals(from_torch(published[name]))} == {}


def test_a_version_that_the_engine_refused_is_published_again_whole(trainer, groups, tmp_path) -> None:
    trainer.train(0, groups)
    damage(tmp_path / "weights" / "v000001")
    trainer.republish()
    assert WeightStore(str(tmp_path / "weights")).read(1).keys() == published_weights(trainer).keys()


@pytest.mark.parametrize("experts", ["nvfp4", "mxfp8", "fp8_block"])
def test_rounded_it_computes_what_the_engine_computed_and_publishes_codes(tmp_path, experts) -> None:
    plain = tiny_recipe()
    shape = plain.model.model_copy(update={"moe_intermediate_size": 32})
    recipe = plain.model_copy(
        update={"model": shape, "precision": PrecisionRecipe(experts=experts, emulate=True, also=["shared"])}
    )
    trainer = open_trainer(tmp_path, recipe)
    metrics = trainer.train(0, make_groups(recipe, trainer.model, 0))
    assert metrics["mismatch_mean"] < 1e-3
    assert metrics["p99_off"] < 0.1
    assert metrics["delta"]
    store = WeightStore(str(tmp_path / "weights"))
    held = store.read(1)
    expected = served_state(trainer.model)
    assert held.keys() == expected.keys()
    assert all(held[name].equals(from_torch(tensor)) for name, tensor in expected.items())
    assert "model.layers.1.mlp.experts.gate_proj.codes" in held
    after = weights(trainer)
    again = open_trainer(tmp_path, recipe)
    assert again.status()["step"] == 1
    assert equal(weights(again), after)
    again.train(1, make_groups(recipe, again.model, 1))
    assert store.latest() == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_poisoned_weights_leave_nothing_behind(tmp_path, bad) -> None:
    """In a weight that no gradient reaches, so that the training itself does not see it."""
    recipe = tiny_recipe(draft_loss=0.0)
    trainer = open_trainer(tmp_path, recipe)
    groups = make_groups(recipe, trainer.model, 0)
    with torch.no_grad():
        trainer.model.mtp[0].eh_proj.weight[3, 4] = bad
    with pytest.raises(PoisonedWeights, match=r"no version is made of these weights: mtp\.0\.eh_proj\.weight has 1 "):
        trainer.train(0, groups)
    with pytest.raises(PoisonedWeights, match="eh_proj"):
        trainer.export()
    assert WeightStore(str(tmp_path / "weights")).versions() == [0]
    assert latest_checkpoint(trainer.paths.checkpoints("rl")) is None
    assert not trainer.paths.model("rl").exists()
    assert trainer.status()["step"] == 0
    assert equal(weights(open_trainer(tmp_path, RECIPE)), weights(open_trainer(tmp_path / "fresh", RECIPE)))


def test_moments_that_are_not_finite_leave_nothing_behind(tmp_path) -> None:
    recipe = tiny_recipe(checkpoint_seconds=1e9)
    trainer = open_trainer(tmp_path, recipe)
    trainer.train(0, make_groups(recipe, trainer.model, 0))
    trainer.optimizer._squares.take("norm.weight", trainer.model.device).fill_(math.inf)
    with pytest.raises(NonFiniteError, match=r"no version is made of step 1: /squares/norm\.weight has 32 of 32"):
        trainer.train(1, make_groups(recipe, trainer.model, 1))
    assert WeightStore(str(tmp_path / "weights")).versions() == [0, 1]
    assert trainer.status()["step"] == 1


def test_a_nan_that_training_meets_stops_it(trainer, groups, tmp_path) -> None:
    with torch.no_grad():
        trainer.model.layers[1].mlp.experts.down_proj[:, 3] = math.nan
    with pytest.raises(NonFiniteError, match="not finite"):
        trainer.train(0, groups)
    assert WeightStore(str(tmp_path / "weights")).versions() == [0]
    assert latest_checkpoint(trainer.paths.checkpoints("rl")) is None
