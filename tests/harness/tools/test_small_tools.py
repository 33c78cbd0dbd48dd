"""glob, todo, ask and the web."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.parts import SAMPLE

from etude.harness import (
    Budgets,
    OverlayWorkspace,
    ScriptedPolicy,
    Toolbox,
    ToolCall,
    ToolLimits,
    load_profile,
    run_agent,
)
from etude.harness.external_services import ExternalServices, FixtureWeb, Web
from etude.harness.schema import builtin_schema
from etude.harness.search.name_patterns import name_pattern
from etude.trace import StopCause

FULL = load_profile("full")
WEB = [builtin_schema("web_search"), builtin_schema("web_fetch")]


def toolbox(outside: ExternalServices | None = None, files: dict[str, bytes] = SAMPLE) -> Toolbox:
    return Toolbox([*FULL.schemas(), *WEB], OverlayWorkspace(files), ToolLimits(), FULL, outside=outside)


def say(bench: Toolbox, name: str, **arguments: Any) -> str:
    call = ToolCall("1", name, arguments, json.dumps(arguments))
    return asyncio.run(bench.run(call, max_tokens=10_000, count=len)).output


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", "calc.py check.py pack/other.py"),
        ("c*.py", "calc.py check.py"),
        ("./c?lc.py", "calc.py"),
        ("pack/*", "pack/other.py"),
        ("pack/**", "pack/other.py"),
        ("**/other.py", "pack/other.py"),
        ("c[ab]*", "calc.py"),
        ("c[!a]*", "check.py"),
        ("*.txt", None),
    ],
)
def test_glob(pattern: str, found: str | None) -> None:
    expected = "No file has such a name." if found is None else found.replace(" ", "\n")
    assert say(toolbox(), "glob", pattern=pattern) == expected


@given(st.text(alphabet="ab/*?[]!-^\\.", max_size=12), st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
def test_any_text_is_a_pattern_and_stars_mean_what_pathlib_means(pattern: str, parts: list[str]) -> None:
    path = "/".join(parts)
    matched = name_pattern(pattern).fullmatch(path)
    plain = re.fullmatch(r"[ab*?]+(/[ab*?]+)*", pattern) and "**" not in pattern
    if plain and pattern.count("/") == path.count("/"):
        assert bool(matched) == PurePosixPath(path).match(pattern)


def test_the_todo_list_is_written_anew_and_checked() -> None:
    bench = toolbox()
    assert say(bench, "todo", items="> read\n- repair\n\nx look") == "> read\n- repair\nx look"
    assert say(bench, "todo", items="first, read") == "An item begins with '- ', '> ' or 'x ': 'first, read' does not."
    assert bench.todo == ["> read", "- repair", "x look"]
    assert say(bench, "todo", items="") == "(nothing to do)"


def test_the_todo_list_goes_over_a_summary() -> None:
    bench = toolbox()
    steps = ["> todo - repair calc.py", "> read calc.py", "all is read", "> finish"]
    policy = ScriptedPolicy(steps, FULL)
    opened = FULL.open("make check pass")
    trigger = policy.tokens(opened) + 10
    outcome = asyncio.run(run_agent(opened, policy, bench, Budgets(summary_trigger=trigger), FULL))
    assert (outcome.stop, outcome.usage.summaries) == (StopCause.FINISHED, 1)
    assert "Your to-do list:\n- repair calc.py" in outcome.conversation.messages[1].text


def test_the_user_is_asked_where_there_is_one() -> None:
    async def answer(question: str) -> str:
        return f"{question} yes\n"

    async def silence(question: str) -> str:
        return " "

    assert say(toolbox(), "ask", question="May I?").startswith("There is nobody to ask")
    assert say(toolbox(ExternalServices(ask=answer)), "ask", question="May I?") == "May I? yes"
    assert say(toolbox(ExternalServices(ask=silence)), "ask", question="May I?") == "(no answer)"


PAGES = [
    {"title": "Sorting", "url": "https://docs.example/sorting", "text": "sorted() returns a list\nlist.sort() none"},
    {"title": "Lists", "url": "https://docs.example/lists", "text": "a list holds things in order"},
]


def test_the_web_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pages.json").write_text(json.dumps(PAGES))
    web = FixtureWeb(tmp_path)
    assert isinstance(web, Web)
    bench = toolbox(ExternalServices(web=web))
    assert say(bench, "web_search", query="sorted list").split("\n") == [
        "Sorting <https://docs.example/sorting>",
        "  sorted() returns a list list.sort() none",
        "Lists <https://docs.example/lists>",
        "  a list holds things in order",
    ]
    assert say(bench, "web_search", query="weather") == "No page was found."
    assert say(bench, "web_fetch", url="https://docs.example/lists") == "a list holds things in order"
    assert "there is no page https://nowhere.example" in say(bench, "web_fetch", url="https://nowhere.example")


def test_without_the_web_its_tools_say_so(tmp_path: Path) -> None:
    assert say(toolbox(), "web_search", query="x") == "There is no way to the web from here."
    missing = toolbox(ExternalServices(web=FixtureWeb(tmp_path / "nothing")))
    assert say(missing, "web_fetch", url="https://docs.example").startswith("The web gave nothing: the pages of")
