"""Which calls are lookups, and which drafts are dropped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.bench.test_asking import Scripted

from etude.bench import Contestant, Kept, Lookup, draft_questions, lookups_of
from etude.trace import ToolEvent, Trace

PAGE = "Since version 4.2 the option --frozen refuses to change the lock file.\n"


def event(name: str, arguments: str, output: str = PAGE, *, ok: bool = True) -> ToolEvent:
    return ToolEvent(0, 0, name, arguments, ok, True, 0.1, output, 9)


def test_calls_on_the_web_and_on_libraries_are_lookups() -> None:
    trace = Trace("t1", "task", "", "", 0, "m", 0, messages=[{"role": "user", "content": "pin it"}])
    trace.tools = [
        event("web_fetch", '{"url": "https://docs"}'),
        event("web_fetch", '{"url": "https://down"}', ok=False),
        event("web_search", '{"query": "frozen"}', "no page"),
        event("read", '{"path": "src/app.py"}'),
        event("read", '{"path": "/usr/lib/python3.11/json/decoder.py"}'),
        event("docs", '{"about": "lock"}'),
    ]
    assert [lookup.source for lookup in lookups_of(trace)] == [
        't1: web_fetch {"url": "https://docs"}',
        't1: read {"path": "/usr/lib/python3.11/json/decoder.py"}',
    ]
    found = list(lookups_of(trace, ["docs"]))
    assert len(found) == 3
    assert (found[0].request, found[0].output) == ("pin it", PAGE)


GOOD = '{"question": "Which option keeps the lock file?", "answers": ["--frozen", "frozen"]}'


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (f"<b>Here:</b> {{x}} {GOOD} {{", ""),
        (f"```json\n{GOOD}\n```", ""),
        ("Which option?", "not a question in JSON"),
        ("[" * 100_000, "not a question in JSON"),
        ('{"question": ' + "[" * 100_000, "not a question in JSON"),
        ('{"question": ["?"], "answers": "x"}', "not a question in JSON"),
        ('{"question": "", "answers": []}', "nothing to ask"),
        ('{"question": "Which?", "answers": [7, "*"]}', "nothing to ask"),
        ('{"question": "Which?", "answers": ["--locked"]}', "the answer is not in what was looked up"),
        ('{"question": "What does --frozen do?", "answers": ["--frozen"]}', "the question gives the answer away"),
        (f'{{"question": "Which?", "answers": ["{"--frozen " * 40}"]}}', "the answer is too long"),
    ],
)
def test_a_draft_stands_only_on_what_was_looked_up(tmp_path: Path, reply: str, reason: str) -> None:
    one = Contestant("m", {}, False, lambda _: Scripted([reply]))
    lookup = Lookup("pin it", "web_fetch", PAGE, "t1: web_fetch")
    drafts, dropped = asyncio.run(draft_questions(one, [lookup], Kept(tmp_path / "kept"), 1))
    assert dict(dropped) == ({reason: 1} if reason else {})
    assert [(draft.answers, draft.source) for draft in drafts] == (
        [] if reason else [(("--frozen", "frozen"), lookup.source)]
    )


def test_the_same_question_is_kept_once_and_a_base_model_continues_the_json(tmp_path: Path) -> None:
    policy = Scripted([GOOD[1:], GOOD[1:].replace("Which", "which")])
    one = Contestant("m", {}, True, lambda _: policy)
    lookups = [Lookup("pin it", f"web_fetch {n}", PAGE, f"t{n}") for n in range(2)]
    drafts, dropped = asyncio.run(draft_questions(one, lookups, Kept(tmp_path / "kept"), 1))
    assert (len(drafts), dict(dropped)) == (1, {"asked twice": 1})
    assert all(text.endswith("Reply: {") for text in policy.asked)
