"""SFT continued: a round is trained once, survives its service, and hands on a version that holds what it learnt."""

from __future__ import annotations

import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from etude.model import PoisonedWeights, load_hf
from etude.pretrain.continued import ContinuedTrainer
from etude.text import Tokenizer
from etude.trace.file import write_traces
from etude.training import Compute
from etude.training.checkpoint import latest_checkpoint
from etude.weights import WeightStore
from etude.weights.torch_bridge import into_module

from .make import _trace


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A finished SFT, and the demonstrations and samples of two rounds."""
    copy = tmp_path / "run"
    shutil.copytree(finished[0], copy)
    tokenizer, rng = Tokenizer.load(copy / "tokenizer.json"), random.Random(3)
    for number in range(2):
        folder = copy / "continued" / f"round-{number}"
        made = [_trace(rng, tokenizer, 100 * number + n) for n in range(12)]
        write_traces(folder / "demonstrations" / "a.parquet", made[:6])
        write_traces(folder / "samples" / "a.parquet", [replace(t, id=f"own-{n}") for n, t in enumerate(made[6:])])
    return copy


def open_trainer(run: Path, recipe, dtype: str = "float32") -> ContinuedTrainer:
    plain = recipe.model_dump(mode="json", by_alias=True)
    plain["continued"] |= {"seconds": 60.0}
    return ContinuedTrainer(str(run), plain, asdict(Compute("cpu", dtype, 1, "test")), str(run / "weights"))


def train(trainer: ContinuedTrainer, run: Path, number: int, passed: tuple[str, ...] = ("own-1",), share: float = 0.1):
    folder = run / "continued" / f"round-{number}"
    return trainer.train(number, str(folder / "demonstrations"), str(folder / "samples"), list(passed), share)


def weights(trainer: ContinuedTrainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def equal(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_round_is_one_pass_over_demonstrations_and_what_passed(run, finished) -> None:
    recipe = finished[1]
    trainer = open_trainer(run, recipe)
    before = weights(trainer)
    assert WeightStore(str(run / "weights")).latest() == 0
    assert train(trainer, run, 0)["traces"] == 7
    assert not equal(before, weights(trainer))
    assert train(trainer, run, 1, passed=())["traces"] == 6
    assert trainer.status()["rounds"] == 2
    assert WeightStore(str(run / "weights")).versions() == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_service_that_died_goes_on_after_its_last_round_with_the_same_bits(run, finished, dtype) -> None:
    recipe = finished[1]
    through = open_trainer(run, recipe, dtype)
    for number in range(2):
        train(through, run, number, share=0.1 + 0.4 * number)
    wanted = weights(through)
    shutil.rmtree(run / "weights")
    shutil.rmtree(run / "stages" / "continued")
    first = open_trainer(run, recipe, dtype)
    done = train(first, run, 0)
    again = open_trainer(run, recipe, dtype)
    assert again.status() == {"rounds": 1, "metrics": done}
    assert train(again, run, 0) == done, "a round that is done is answered, not done again"
    train(again, run, 1, share=0.5)
    assert equal(wanted, weights(again))
    with pytest.raises(ValueError, match="asked to train round 3, but 2 is next"):
        train(again, run, 3)


def test_what_the_engine_reads_is_what_was_trained(run, finished) -> None:
    trainer = open_trainer(run, finished[1], "bfloat16")
    train(trainer, run, 0)
    served = load_hf(run / "stages" / "sft" / "model", torch.bfloat16)
    into_module(served, WeightStore(str(run / "weights")).read(1))
    assert equal(dict(served.state_dict()), weights(trainer))
    folder = Path(trainer.export())
    exported = load_hf(folder, torch.bfloat16)
    assert folder == run / "stages" / "continued" / "model"
    assert all(torch.equal(value, exported.state_dict()[name]) for name, value in served.state_dict().items())


def test_the_rate_decays_with_the_time_and_not_before(run, finished) -> None:
    recipe = finished[1]
    peak = recipe.continued.optimizer.lr
    trainer = open_trainer(run, recipe)
    trainer.optimizer.recipe = trainer.optimizer.recipe.model_copy(update={"warmup_steps": 0})
    assert train(trainer, run, 0, share=0.001)["lr"] == pytest.approx(peak, rel=1e-3), "nothing is known of the end yet"
    steps = trainer.optimizer.finished
    later = train(trainer, run, 1, share=0.25)["lr"]
    assert trainer.optimizer.total_steps == 4 * steps
    gone = trainer.optimizer.finished / (4 * steps)
    assert later == pytest.approx(peak * (1 - 0.9 * gone))


def test_poisoned_weights_leave_nothing_behind(run, finished) -> None:
    """In a router's bias, which training never reads a gradient of."""
    trainer = open_trainer(run, finished[1])
    trainer.model.layers[1].mlp.gate.e_score_correction_bias[0] = -torch.inf
    with pytest.raises(PoisonedWeights, match=r"layers\.1\.mlp\.gate\.e_score_correction_bias has 1 of 4 numbers"):
        train(trainer, run, 0)
    with pytest.raises(PoisonedWeights):
        trainer.export()
    assert WeightStore(str(run / "weights")).versions() == [0]
    assert latest_checkpoint(trainer.paths.checkpoints("continued")) is None
    assert not trainer.paths.model("continued").exists()
    assert trainer.status()["rounds"] == 0
