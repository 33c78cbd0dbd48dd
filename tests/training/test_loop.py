"""The loop: resumes anywhere to the same bits, wherever checkpoints fall; refuses what is not its own."""

import json

import pytest
import torch
from torch import nn

from etude.journal import read_rows
from etude.recipe.training import OptimizerRecipe, StageRecipe
from etude.training import (
    CheckpointError,
    MasterWeights,
    NonFiniteError,
    StageRunner,
    StepLoss,
    back_propagate,
    build_optimizer,
)

STEPS = 9


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 3))
        self.register_buffer("seen", torch.zeros(()))


def runner(folder, *, every=1000.0, identity="a", spoil=None, dtype=torch.float32):
    model = Small()
    optim = build_optimizer(
        model, OptimizerRecipe(name="muon", lr=0.02, warmup_steps=2), STEPS, masters=MasterWeights(model, dtype)
    )

    def compute_loss(step):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step)).to(dtype)
        loss = model.layers(x).float().square().mean()  # dropout draws from the global generator
        yield StepLoss(loss * (float("nan") if step == spoil else 1), 5)

    def after_step(step):
        model.seen += step

    recipe = StageRecipe(steps=STEPS, checkpoint_seconds=every, log_every=2)
    torch.manual_seed(3)
    return model, StageRunner(folder, recipe, model, optim, compute_loss, identity=identity, after_step=after_step)


def finish(folder, **options):
    folder.mkdir(exist_ok=True)
    model, loop = runner(folder, **options)
    loop.resume()
    reports = list(loop.run())
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, reports


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stops", [[1], [2, 5], [1, 2, 3, 8]])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, stops, dtype):
    expected, _ = finish(tmp_path / "straight", dtype=dtype)
    folder = tmp_path / "broken"
    folder.mkdir()
    for stop in stops:
        _, loop = runner(folder, every=0.0, dtype=dtype)
        loop.resume()
        for _ in loop.run():
            if loop.step >= stop:
                break
    found, _ = finish(folder, dtype=dtype)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert found["seen"] == sum(range(STEPS))


def test_reports_and_metrics(tmp_path):
    _, reports = finish(tmp_path)
    assert [report.step for report in reports] == [2, 4, 6, 8, 9]
    assert reports[-1].total == STEPS
    assert {"lr", "grad_norm"} <= set(reports[0].metrics)
    assert [line["step"] for line in read_rows(tmp_path / "metrics.jsonl")] == [2, 4, 6, 8, 9]
    assert (tmp_path / "checkpoints" / f"step-{STEPS:08d}").is_dir()


def test_a_finished_run_does_nothing_more(tmp_path):
    finish(tmp_path)
    assert finish(tmp_path)[1] == []


def test_each_step_is_logged_once_whatever_a_kill_left(tmp_path):
    _, loop = runner(tmp_path, every=0.0)
    loop.resume()
    for _ in loop.run():
        if loop.step >= 4:
            break
    with (tmp_path / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": 8, "loss": 1.0}) + "\n" + '{"step": 9, "lo')
    finish(tmp_path)
    assert [line["step"] for line in read_rows(tmp_path / "metrics.jsonl")] == [2, 4, 6, 8, 9]


def test_a_log_that_a_power_cut_spoiled_keeps_no_stage_from_going_on(tmp_path):
    finish(tmp_path)
    log = tmp_path / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], b"\0" * 40 + b"\n", *lines[3:]]))
    finish(tmp_path)
    assert [row["step"] for row in read_rows(log)] == [2, 4]


def test_a_log_on_a_full_disk_is_one_clear_error(tmp_path):
    _, loop = runner(tmp_path)
    loop.resume()
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: the disk is full") as caught:
        list(loop.run())
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    finish(tmp_path)
    with pytest.raises(CheckpointError, match="another recipe, code or input"):
        finish(tmp_path, identity="b")


def test_microbatches_add_up_and_one_graph_exists_at_a_time():
    model = nn.Linear(3, 1, bias=False)
    optim = build_optimizer(model, OptimizerRecipe(), STEPS)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))

    def parts():
        for number in range(3):
            assert ("weight" in optim.masters.gradients) is (number > 0), "the part before has been back-propagated"
            yield StepLoss(model(x[2 * number :][:2]).sum() / 6, 2, {"share": 1 / 3} if number else {})

    loss, tokens, metrics = back_propagate(optim, parts())
    assert (loss, tokens, metrics) == (
        pytest.approx(float(model(x).detach().mean())),
        6,
        {"share": pytest.approx(2 / 3)},
    )
    torch.testing.assert_close(optim.masters.gradients["weight"], x.mean(0)[None])


def test_a_loss_that_is_not_finite_stops_with_its_step(tmp_path):
    with pytest.raises(NonFiniteError, match="step 3 is nan"):
        finish(tmp_path, spoil=3)


def test_a_state_that_is_not_finite_is_not_checkpointed_and_the_one_before_goes_on(tmp_path):
    expected, _ = finish(tmp_path / "straight")
    folder = tmp_path / "poisoned"
    folder.mkdir()
    model, loop = runner(folder, every=0.0)
    steps = loop.run()
    assert [next(steps).step, next(steps).step] == [2, 4]
    model.layers[0].weight.data[2, 3] = float("nan")
    with pytest.raises(NonFiniteError, match=r"of step 4 .*: /optim/masters/layers\.0\.weight has 1 of 72"):
        next(steps)
    found, _ = finish(folder, every=0.0)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
