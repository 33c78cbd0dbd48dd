"""The service: streams, stops when left, resumes after kill -9 to the same bits, and fails with its own errors."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from etude.pretrain import PretrainError, StageService

from .bits import stage_bits
from .conftest import STAGES

pytestmark = pytest.mark.timeout(1800)

PATIENCE = 300.0
"""With one process that loads torch and trains some steps; it ends what hangs."""
PROGRAM = """
import asyncio, json, os, signal, sys
from etude.pretrain import StageService

async def main():
    service = StageService(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    async for progress in service.run():
        if progress["step"] >= int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


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


def start(stage, run, data, dies_at=1_000):
    words = [sys.executable, "-c", PROGRAM, stage, str(run), json.dumps(data), str(dies_at)]
    return subprocess.Popen(words, start_new_session=True)


def killed(process, seconds):
    """Whether the kill came before the end."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def wait_for_step(path, step, process):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_text().count("\n") >= step:
            return
        time.sleep(0.002)


def test_kill_9_in_the_middle_changes_no_bit(finished, before):
    run, recipe = before("pretrain")
    # Checkpoints at every step, then by the clock: where they fall must not matter.
    for step, seconds in ((2, 0.0), (8, 0.02)):
        changed = plain(recipe, "pretrain", log_every=1, checkpoint_seconds=seconds)
        assert start("pretrain", run, changed, dies_at=step).wait(PATIENCE) == -signal.SIGKILL
    assert not (run / "stages" / "pretrain" / "result.json").exists()
    last = start("pretrain", run, plain(recipe, "pretrain"))
    assert last.wait(PATIENCE) == 0
    assert stage_bits(run, "pretrain") == stage_bits(finished[0], "pretrain")


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_many_kills_at_any_moment_change_no_bit(finished, before, stage):
    run, recipe = before(stage)
    metrics = run / "stages" / stage / "metrics.jsonl"
    for round_number in range(8):
        process = start(stage, run, plain(recipe, stage, log_every=1, checkpoint_seconds=0.0))
        wait_for_step(metrics, 1 + round_number, process)
        killed(process, 0.003 * round_number)
    last = start(stage, run, plain(recipe, stage))
    assert last.wait(PATIENCE) == 0
    assert stage_bits(run, stage) == stage_bits(finished[0], stage)
