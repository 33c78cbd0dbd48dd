from __future__ import annotations

from dataclasses import replace

import pytest
from tests.harness.parts import compact_format
from tests.text.formats.tiny import merged

from etude.harness import PolicyError, ScriptedPolicy, load_profile
from etude.rollout import TooFewDemonstrations, demonstrate, oracle
from etude.tasks.task import SplitViolation
from etude.text.formats import FORMATS
from etude.trace.file import read_traces

pytestmark = pytest.mark.anyio
PROFILE = load_profile("compact")
FULL = {
    "profile": "full",
    "max_tokens": 9_000,
    "max_turn_tokens": 2_000,
    "max_output_tokens": 2_000,
    "summary_trigger": 0,
}


async def test_the_oracle_is_recorded_token_by_token(train, setup, tmp_path):
    form = compact_format()

    found = await demonstrate(train, setup, form, 512, tmp_path / "d", count=12, seed=3, expert=oracle(slip=0.3))
    assert (found.kept, found.errors) == (12, 0)
    traces = list(read_traces(tmp_path / "d"))
    assert len(traces) == 12
    assert found.summarised == sum(trace.usage.summaries > 0 for trace in traces)
    assert found.tokens == sum(len(s.tokens) for trace in traces for s in trace.segments)
    for trace in traces:
        assert (trace.policy, trace.split) == ("oracle", "train")
        sampled = [segment.tokens[segment.sampled] for segment in trace.segments]
        assert sum(map(len, sampled)) == trace.usage.sampled_tokens > 0
        for segment in trace.segments:
            assert (segment.versions == -1).all()
            assert not segment.logprobs.any()
        assert all(event.valid for event in trace.tools)
        # What was carried out is what the tokens say.
        said = "\n".join(form.tokenizer.decode(ids.tolist()) for ids in sampled)
        assert all(event.arguments in said for event in trace.tools)
    again = await demonstrate(train, setup, form, 512, tmp_path / "d", count=12, seed=3)
    assert again == found
    other = await demonstrate(
        train, setup, form, 512, tmp_path / "e", count=12, seed=3, expert=oracle(slip=0.3), concurrency=5
    )
    assert {k: v for k, v in vars_of(other).items() if k != "episodes"} == {
        k: v for k, v in vars_of(found).items() if k != "episodes"
    }


@pytest.mark.parametrize("name", ["qwen3", "glm4.5", "llama3", "deepseek-v3.1"])
async def test_the_oracle_shows_the_tools_and_the_format_of_a_published_model(name, train, setup, tmp_path):
    full = load_profile("full")
    widened = replace(setup, harness=setup.harness.model_copy(update=FULL))
    form = FORMATS[name](merged())
    expert = oracle(tools=full.tools)
    found = await demonstrate(train, widened, form, 30_000, tmp_path / "d", count=2, seed=3, expert=expert)
    assert (found.kept, found.episodes) == (2, 2)
    for trace in read_traces(tmp_path / "d"):
        assert all(event.valid for event in trace.tools)
        assert {event.name for event in trace.tools} >= {"bash", "edit"}
    with pytest.raises(PolicyError, match="one of the tools shell and bash, but the agent has none"):
        oracle(tools=("read", "edit"))


def vars_of(found):
    return {name: getattr(found, name) for name in found.__slots__}


async def test_only_the_kinds_that_were_asked_for(train, setup, tmp_path):
    kind = train[0].kind

    found = await demonstrate(train, setup, compact_format(), 512, tmp_path / "d", count=3, kinds=[kind])
    assert found.by_kind == {kind: 3}
    with pytest.raises(TooFewDemonstrations, match="kinds asked for: fancy"):
        await demonstrate(train, setup, compact_format(), 512, tmp_path / "e", count=3, kinds=["fancy"])


async def test_episodes_that_fail_are_not_kept(train, setup, tmp_path):
    with pytest.raises(TooFewDemonstrations, match="only 0 of 2 demonstrations passed"):
        await demonstrate(
            train[:1], setup, compact_format(), 512, tmp_path / "d", count=2,
            expert=lambda task, seed: ScriptedPolicy(["> finish"], PROFILE), concurrency=2,
        )  # fmt: skip
    assert not (tmp_path / "d" / "summary.json").exists()


async def test_other_splits_are_refused(dev, setup, tmp_path):
    with pytest.raises(SplitViolation):
        await demonstrate(dev, setup, compact_format(), 512, tmp_path / "d", count=1)
