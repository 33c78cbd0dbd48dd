from __future__ import annotations

import json
from dataclasses import replace

import pytest

from etude.trace import (
    Break,
    BreakKind,
    SegmentKind,
    Trace,
    TraceError,
    from_line,
    to_atif,
    to_line,
    to_markdown,
    to_openai,
)


def test_atif_steps_observations_and_metrics(trace: Trace) -> None:
    document = json.loads(json.dumps(to_atif(trace, agent_version="0.1.0", extra={"reward": 1.0})))
    assert document["schema_version"] == "ATIF-v1.7"
    assert document["agent"] == {"name": "etude", "version": "0.1.0", "model_name": "v5"}
    steps = document["steps"]
    assert [step["step_id"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [step["source"] for step in steps] == ["system", "user", "agent", "agent", "system", "agent"]
    assert [result["source_call_id"] for result in steps[2]["observation"]["results"]] == ["0", "1"]
    good, malformed = steps[2]["tool_calls"]
    assert good["arguments"] == {"file": "calc.py"}
    assert malformed["arguments"] == {}
    assert malformed["extra"] == {"raw_arguments": 'edit "calc'}
    assert [step["step_id"] for step in steps if "context_management" in step.get("extra", {})] == [5]
    assert steps[4]["extra"]["context_management"] == {"type": "compaction", "boundary": "replace"}
    metrics = [step["metrics"] for step in steps if step["source"] == "agent"]
    assert [m["prompt_tokens"] for m in metrics] == [4, 11, 3]
    assert metrics[1]["completion_token_ids"] == [100, 101]
    assert metrics[1]["extra"] == {"segment": 0, "versions": [5, 5]}
    assert len(metrics[0]["logprobs"]) == metrics[0]["completion_tokens"] == 3
    assert document["extra"]["reward"] == 1.0
    assert document["extra"]["segments"][1] == {"id": 1, "parent": 0, "kind": "summary", "tokens": 4}


def test_what_ran_beside_the_agent_takes_no_step_of_it_and_breaks_are_told(trace: Trace) -> None:
    plain = to_atif(trace, agent_version="0")
    first, second = trace.segments
    beside = [
        replace(first, id=2 + n, parent=parent, kind=kind)
        for n, (parent, kind) in enumerate(
            [(0, SegmentKind.AGENT), (2, SegmentKind.SUMMARY), (None, SegmentKind.ASIDE)]
        )
    ]
    trace.segments = [first, *beside, replace(second, breaks=(Break(BreakKind.EDITED, 3, "turn 2"),))]
    document = to_atif(trace, agent_version="0")
    assert document["steps"] == plain["steps"], "each step has the tokens of its own turn"
    used = {name: document["final_metrics"][name] for name in ("total_prompt_tokens", "total_completion_tokens")}
    assert used["total_completion_tokens"] == plain["final_metrics"]["total_completion_tokens"] + 3 * 5
    assert document["extra"]["segments"][-1]["breaks"] == [{"kind": "edited", "place": 3, "detail": "turn 2"}]
    page = to_markdown(trace)
    assert "- beside it: `1 agent, 1 aside`" in page
    assert "- breaks: `1 edited`" in page


def test_atif_of_a_rollout_that_died_in_a_turn_has_no_metrics(trace: Trace) -> None:
    trace.messages.pop()
    assert all("metrics" not in step for step in to_atif(trace, agent_version="0")["steps"])
    trace.messages.clear()
    (step,) = to_atif(trace, agent_version="0")["steps"]
    assert (step["source"], step["message"]) == ("system", "nothing was said"), "a trajectory has a step"


def test_openai_keeps_raw_arguments(trace: Trace) -> None:
    document = json.loads(json.dumps(to_openai(trace)))
    calls = document["messages"][2]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"file": "calc.py"}', 'edit "calc']
    assert document["messages"][3] == {"role": "tool", "tool_call_id": "0", "content": "1 def clamp\n"}
    assert document["metadata"]["task"] == "clamp-low"
    assert document["metadata"]["stop"] == "finished"


def test_openai_arguments_are_strings_even_where_the_conversation_had_objects(trace: Trace) -> None:
    trace.messages = [
        {"role": "assistant", "tool_calls": [{"id": "0", "function": {"name": "read", "arguments": {"file": "a"}}}]}
    ]
    (message,) = to_openai(trace)["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"file": "a"}'


def test_lines_of_another_version_and_of_something_else_are_refused(trace: Trace) -> None:
    line = to_line(trace)
    assert from_line(line).messages == trace.messages
    with pytest.raises(
        TraceError, match="is etude-trace-lines/3, this version reads etude-trace-lines/2 and older: update"
    ):
        from_line(line.replace("etude-trace-lines/2", "etude-trace-lines/3", 1))
    for other in ("{}", "[]", "nonsense", '{"format": "etude-trace-lines/2"}'):
        with pytest.raises(TraceError, match="not the line of a trace"):
            from_line(other)
