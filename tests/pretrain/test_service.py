"""The service: streams, stops when left, resumes after kill -9 to the same bits, and fails with its own errors."""

import asyncio
import signal
import threading
import time

import pytest
from tests.pretrain.lives import begin, end

from etude.pretrain import PretrainError, StageService

from .bits import stage_bits
from .conftest import STAGES

pytestmark = pytest.mark.timeout(1800)

PATIENCE = 300.0
"""With one process that trains some steps; it ends what hangs."""


def plain(recipe, stage, **changes):
    data = recipe.model_dump(mode="json", by_alias=True)
    data[stage] |= changes
    return data


def collect(service, leave_after=None):
    async def go():
        items = []
        stream = service.run()
        async for item in stream:
            items.append(item)
            if leave_after is not None and item["step"] >= leave_after:
                break
        await stream.aclose()
        return items

    return asyncio.run(go())


def test_the_stream_ends_with_the_result(finished, before):
    run, recipe = before("long")
    service = StageService("long", str(run), plain(recipe, "long"))
    assert service.result() is None
    items = collect(service)
    assert [item["step"] for item in items] == [0, 2, 4, 6, 6]
    assert items[-1]["result"] == service.result() == finished[2]["long"]["result"]
    assert {"stage", "step", "total", "loss", "tokens_per_second"} <= set(items[1])
    assert collect(service)[0]["result"] == service.result()


def test_leaving_the_stream_stops_the_training(finished, before):
    run, recipe = before("pretrain")
    data = plain(recipe, "pretrain", log_every=1, checkpoint_seconds=0.0)
    assert len(collect(StageService("pretrain", run, data), leave_after=3)) >= 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stage-")]
    collect(StageService("pretrain", run, data))
    assert stage_bits(run, "pretrain") == stage_bits(finished[0], "pretrain")


def test_an_error_of_the_stage_reaches_the_stream(before):
    run, recipe = before("pretrain")
    with pytest.raises(PretrainError, match="stage sft starts from the model of stage mtp"):
        collect(StageService("sft", run, plain(recipe, "sft")))


def wait_for_step(path, step, life):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and life.is_alive():
        if path.exists() and path.read_text().count("\n") >= step:
            return
        time.sleep(0.002)


def test_kill_9_in_the_middle_changes_no_bit(finished, before):
    run, recipe = before("pretrain")
    # Checkpoints at every step, then by the clock: where they fall must not matter.
    for step, seconds in ((2, 0.0), (8, 0.02)):
        changed = plain(recipe, "pretrain", log_every=1, checkpoint_seconds=seconds)
        assert end(begin("pretrain", run, changed, dies_at=step), PATIENCE) == -signal.SIGKILL
    assert not (run / "stages" / "pretrain" / "result.json").exists()
    assert end(begin("pretrain", run, plain(recipe, "pretrain")), PATIENCE) == 0
    assert stage_bits(run, "pretrain") == stage_bits(finished[0], "pretrain")


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_many_kills_at_any_moment_change_no_bit(finished, before, stage):
    run, recipe = before(stage)
    metrics = run / "stages" / stage / "metrics.jsonl"
    for round_number in range(8):
        life = begin(stage, run, plain(recipe, stage, log_every=1, checkpoint_seconds=0.0))
        wait_for_step(metrics, 1 + round_number, life)
        if end(life, 0.003 * round_number) is None:
            life.kill()
            life.join()
    assert end(begin(stage, run, plain(recipe, stage)), PATIENCE) == 0
    assert stage_bits(run, stage) == stage_bits(finished[0], stage)
