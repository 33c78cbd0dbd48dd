from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.harness.parts import ScriptedEngine, compact_format, playing, written
from tests.sandbox.hosts import TAKES_ITS_SHARE

from etude.engine.protocol import EngineError
from etude.harness import PolicyError, ScriptedPolicy, TokenPolicy, TokenSampling, load_profile
from etude.rollout import RolloutJob, run_rollout, subject_of
from etude.sandbox import BoxSpec, SandboxLost
from etude.tasks.oracle import reference_repair
from etude.tasks.task import Split, SplitViolation
from etude.tasks.verdict import Judgement
from etude.trace import StopCause

pytestmark = pytest.mark.anyio
PROFILE = load_profile("compact")


def scripted(*steps):
    return lambda job, task, recorder: ScriptedPolicy(steps, PROFILE)


def job_of(task, **fields) -> RolloutJob:
    return RolloutJob(task.id, task.split, group="g", **fields)


def mend(task) -> str:
    repair = reference_repair(task)
    return f"> edit {repair.file} {repair.line} {repair.right}"


def spoil(task) -> str:
    repair = reference_repair(task)
    return f"> edit {repair.file} {repair.line} pass"


async def rolled(setup, task, *steps, policy=None, **fields):
    subject = await subject_of(task, setup.environments)
    return await run_rollout(job_of(task, **fields), subject, policy or scripted(*steps), setup)


async def test_from_a_task_to_a_verdict(train, setup):
    task = train[0]
    result = await rolled(setup, task, "> shell python check.py", mend(task), "> shell python check.py", "> finish")
    assert result.verdict.judgement is Judgement.PASS
    trace = result.trace
    assert (trace.id, trace.task, trace.split, trace.stop) == ("g/000.0", task.id, "train", StopCause.FINISHED)
    assert trace.tools[0].output.startswith("FAIL")
    assert trace.tools[2].output == "ok"
    assert reference_repair(task).right in trace.diff
    assert trace.usage.turns == 4
    assert trace.timing.keys() == {"policy", "tools", "grade", "total"}
    assert [m["role"] for m in trace.messages[:3]] == ["system", "user", "assistant"]
    assert not result.failed_by_us


async def test_an_environment_may_be_stricter_and_take_tools_away(train, setup):
    repair = reference_repair(train[0])
    task = replace(train[0], strict=True, without=("shell", "bash"))
    assert "shell" not in setup.profile(task).tools
    subject = replace(await subject_of(train[0], setup.environments), task=task)
    steps = ["> shell python check.py", mend(task), f"> read {repair.file}", mend(task), "> finish"]
    result = await run_rollout(job_of(task), subject, scripted(*steps), setup)
    assert [event.output for event in result.trace.tools[:2]] == ["no shell", "no"]
    assert result.verdict.judgement is Judgement.PASS


async def test_doing_nothing_fails_and_running_out_is_a_fail_even_when_mended(train, setup):
    task = train[0]
    assert (await rolled(setup, task, "> finish")).verdict.judgement is Judgement.FAIL
    out = await rolled(setup, task, mend(task), *["> list"] * 20)
    assert out.trace.stop is StopCause.TURNS
    assert out.verdict.judgement is Judgement.FAIL


async def test_the_first_edit_is_graded_alone(train, setup):
    task = train[0]
    lucky = await rolled(setup, task, mend(task), spoil(task), "> finish", grade_first_edit=True)
    assert (lucky.verdict.passed, lucky.first_edit.passed) == (False, True)
    late = await rolled(setup, task, spoil(task), mend(task), "> finish", grade_first_edit=True)
    assert (late.verdict.passed, late.first_edit.passed) == (True, False)
    once = await rolled(setup, task, spoil(task), mend(task), "> finish", max_edits=1)
    assert (once.verdict.passed, once.trace.tools[1].output) == (False, "no edit")
    assert (await rolled(setup, task, "> finish", grade_first_edit=True)).first_edit is None


class _Breaking:
    """Sandboxes whose boxes are lost as soon as they are asked for."""

    def __init__(self, inner):
        self.inner = inner
        self.features = inner.features
        self.add_image = inner.add_image

    async def create(self, spec: BoxSpec):
        raise SandboxLost("the host is gone")


@pytest.mark.parametrize("step", ["> shell ls", "> finish"])
async def test_lost_boxes_are_our_error_wherever_they_are_lost(train, setup, step):
    broken = _Breaking(setup.sandboxes)
    subject = await subject_of(train[0], setup.environments)
    broken_setup = replace(setup, sandboxes=broken, grader=type(setup.grader)(broken))
    result = await run_rollout(job_of(train[0]), subject, scripted(step), broken_setup)
    assert result.verdict.judgement is Judgement.ERROR
    assert result.failed_by_us
    assert "the host is gone" in result.trace.error + result.verdict.reason


@pytest.mark.parametrize(("command", "ours"), [("sleep 8", False), (TAKES_ITS_SHARE, True)])
async def test_a_command_that_outlasts_its_limit_is_our_error_only_where_the_host_gave_it_no_time(
    train, setup, short_of_time, command, ours
):
    hasty = replace(setup, sandbox=setup.sandbox.model_copy(update={"command_seconds": 1.0}))
    result = await rolled(hasty, train[0], f"> shell {command}", mend(train[0]), "> finish")
    assert result.failed_by_us is ours
    if ours:
        assert result.trace.stop is StopCause.ERROR
        assert result.verdict.reason.startswith("HostOverloaded: a command reached its limit of 1 s")
    else:
        assert result.verdict.passed


async def test_a_policy_that_fails_is_our_error_and_a_mistake_of_ours_is_raised(train, setup):
    def fail(conversation):
        raise PolicyError("no endpoint")

    def mistake(conversation):
        raise ZeroDivisionError

    result = await rolled(setup, train[0], fail)
    assert (result.verdict.judgement, result.trace.error) == (Judgement.ERROR, "PolicyError: no endpoint")
    with pytest.raises(ZeroDivisionError):
        await rolled(setup, train[0], mistake)


async def test_a_reader_of_another_split_is_refused(train, setup):
    subject = await subject_of(train[0], setup.environments)
    with pytest.raises(SplitViolation):
        await run_rollout(RolloutJob(train[0].id, Split.TEST), subject, scripted("> finish"), setup)


async def test_tokens_are_recorded_and_the_engine_hears_of_the_end_before_grading(train, setup):
    task = train[0]
    engine = ScriptedEngine(playing([written("list"), written(mend(task)[2:]), written("finish")]))
    closed_before_grading = []

    class Watching:
        async def grade(self, task, diff):
            closed_before_grading.append(list(engine.closed))
            return await setup.grader.grade(task, diff)

    def policy(job, task, recorder):
        sampling = TokenSampling(4096, job.temperature, job.seed)
        schemas = PROFILE.schemas()
        return TokenPolicy(engine, compact_format(), schemas, sampling, recorder, conversation=job.id)

    result = await rolled(replace(setup, grader=Watching()), task, policy=policy)
    assert result.verdict.passed
    assert closed_before_grading == [["g/000.0"]]
    segments = result.trace.segments
    assert sum(int(s.sampled.sum()) for s in segments) == result.trace.usage.sampled_tokens
    assert result.trace.version_span() == (0, result.trace.usage.sampled_tokens - 1)

    async def lost(request):
        raise EngineError("lost")

    engine.generate = lost
    assert (await rolled(setup, task, policy=policy)).verdict.judgement is Judgement.ERROR


async def test_a_cancelled_rollout_leaves_no_box(train, setup):
    rollout = asyncio.create_task(rolled(setup, train[0], "> shell sleep 8"))
    boxes = setup.sandboxes._inner._boxes
    while not boxes:  # noqa: ASYNC110 - what is cancelled must not know
        await asyncio.sleep(0.01)
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert not boxes
