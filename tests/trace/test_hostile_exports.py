"""Whatever was said, exports keep their structure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from tests.trace.atif_schema import Trajectory

from etude.trace import StopCause, Trace, TraceUsage, to_atif, to_markdown, to_openai_contexts

PIECES = (
    "# Forged\n", "\n\n", "```", "````\n", "~~~\n", "</details>", "<details>", "<script>1</script>", "`", "|", "\\|",
    "[x](http://b)", "![x](y)", "***\n", "---\n", "\r", "\x0b", "\x0c", "\x1b[2J", "\u2028", "\u202e", "    code\n",
    "- item\n", "> quote\n", "&lt;", "\\", "a", " ", "\t", "1. one\n", "| a | b |\n|---|---|\n", "[a]: http://b\n", "",
)  # fmt: skip
hostile = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)


def trace_of(texts: list[str]) -> Trace:
    """One shape, whatever the texts are."""
    it = iter(texts)
    name, long, short = next(it), f"x\n{next(it)}", next(it).replace("\n", " ")  # long ones stand by themselves
    call = {"id": "1", "function": {"name": name, "arguments": json.dumps({"long": long, "b": short})}}
    broken = {"id": "2", "function": {"name": "edit", "arguments": f"edit x {next(it)}"}}
    messages: list[dict[str, object]] = [
        {"role": "system", "content": f"s{next(it)}"},
        {"role": "user", "content": next(it)},
        {
            "role": "assistant",
            "content": f"a{next(it)}",
            "reasoning_content": f"t{next(it)}",
            "tool_calls": [call, broken],
        },
        {"role": "tool", "tool_call_id": "1", "content": next(it)},
        {"role": "tool", "tool_call_id": next(it), "content": next(it)},
        {"role": "system", "content": next(it)},
        {"role": "user", "content": next(it)},
        {"role": "assistant", "content": f"done{next(it)}"},
    ]
    return Trace(
        id=f"i{next(it)}", task=f"k{next(it)}", split="dev", group="g", member=0, policy=f"p{next(it)}", seed=0,
        usage=TraceUsage(turns=2), stop=StopCause.REPLIED, error=f"e{next(it)}", timing={"tools": 1.0},
        diff=f"d{next(it)}", messages=messages,
    )  # fmt: skip


COUNT = 19
SIGNALS = [{"what": "edits_accepted", "time": 1.0, "files": ["x"]}]


def shape(text: str) -> list[tuple[str, str, str]]:
    def kinds(tokens: list[Token]) -> list[tuple[str, str, str]]:
        found = []
        for token in tokens:
            shown = token.content if token.type in ("html_block", "html_inline") else ""
            found.append((token.type, token.tag, shown))
            found += kinds([t for t in token.children or [] if t.type not in ("softbreak",)])
        return found

    return kinds(MarkdownIt("commonmark", {"html": True}).enable("table").parse(text))


PLAIN = shape(to_markdown(trace_of(["x"] * COUNT), signals=SIGNALS))


@settings(max_examples=50, deadline=None)
@given(st.lists(hostile.map(lambda text: f"x{text}"), min_size=COUNT, max_size=COUNT))
def test_nothing_that_was_said_forges_structure_on_the_page(texts: list[str]) -> None:
    page = to_markdown(trace_of(texts), signals=[{**SIGNALS[0], "files": [texts[0]]}])
    assert shape(page) == PLAIN
    assert "\x1b" not in page
    assert "\r" not in page


def test_the_page_says_all_there_is_to_say() -> None:
    page = to_markdown(trace_of([f"<{n}>" for n in range(COUNT)]), signals=SIGNALS)
    assert all(f"<{n}>" in page for n in range(COUNT) if n != 9), "the id of a call that nobody made says nothing"
    for part in (
        "## Turn 1",
        "## Turn 2",
        "## Summary",
        "<summary>thinking</summary>",
        "## Change",
        "## Spent",
        "## Signals",
    ):
        assert part in page


def validated(trace: Trace, **more: Any) -> Trajectory:
    return Trajectory.model_validate_json(json.dumps(to_atif(trace, agent_version="0", **more)))


@settings(max_examples=30, deadline=None)
@given(st.lists(hostile, min_size=COUNT, max_size=COUNT), st.integers(0, 8))
def test_every_trajectory_is_valid_wherever_it_ended(texts: list[str], length: int) -> None:
    trace = trace_of(texts)
    found = validated(
        replace(trace, messages=trace.messages[:length]), extra={"reward": 1.0}, tools=[{"type": "function"}]
    )
    assert len(found.steps) >= 1


def test_recorded_tokens_make_a_valid_trajectory(trace: Trace) -> None:
    steps = validated(trace).steps
    assert [step.metrics.completion_tokens for step in steps if step.metrics] == [3, 2, 1]
    assert all(step.llm_call_count == 1 for step in steps if step.source == "agent")


@settings(max_examples=60, deadline=None)
@given(st.lists(hostile, min_size=COUNT, max_size=COUNT))
def test_chat_messages_come_back_as_they_were_a_context_at_a_time(texts: list[str]) -> None:
    trace = trace_of(texts)
    tools: list[Mapping[str, Any]] = [{"type": "function", "function": {"name": "edit"}}]
    records = [json.loads(json.dumps(record)) for record in to_openai_contexts(trace, tools=tools)]
    back = [message for record in records for message in record["messages"]]
    for message in back:
        for call in message.get("tool_calls") or ():
            assert call.pop("type") == "function"
    assert back == trace.messages
    assert [record["messages"][0]["role"] for record in records] == ["system", "system"]
    assert [record["metadata"]["context"] for record in records] == [0, 1]
    assert all(record["tools"] == tools for record in records)
