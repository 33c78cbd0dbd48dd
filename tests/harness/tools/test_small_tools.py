"""glob, todo, ask and the web."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.parts import FULL, Bench

from etude.harness import Budgets, ScriptedPolicy, run_agent
from etude.harness.external_services import Ask, ExternalServices, FixtureWeb, Web
from etude.harness.search.name_patterns import name_pattern
from etude.trace import StopCause


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
    assert Bench().say_now("glob", pattern=pattern) == expected


@given(st.text(alphabet="ab/*?[]!-^\\.", max_size=12), st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
def test_any_text_is_a_pattern_and_stars_mean_what_pathlib_means(pattern: str, parts: list[str]) -> None:
    path = "/".join(parts)
    matched = name_pattern(pattern).fullmatch(path)
    plain = re.fullmatch(r"[ab*?]+(/[ab*?]+)*", pattern) and "**" not in pattern
    if plain and pattern.count("/") == path.count("/"):
        assert bool(matched) == PurePosixPath(path).match(pattern)


def test_the_todo_list_is_written_anew_and_checked() -> None:
    bench = Bench()
    assert bench.say_now("todo", items="> read\n- repair\n\nx look") == "> read\n- repair\nx look"
    assert (
        bench.say_now("todo", items="first, read") == "An item begins with '- ', '> ' or 'x ': 'first, read' does not."
    )
    assert bench.toolbox.todo == ["> read", "- repair", "x look"]
    assert bench.say_now("todo", items="") == "(nothing to do)"


def test_the_todo_list_and_running_jobs_go_over_a_summary() -> None:
    bench = Bench()
    bench.toolbox.jobs = [(1, "sleep 50")]
    steps = ["> todo - repair calc.py", "> read calc.py", "all is read", "> finish"]
    policy = ScriptedPolicy(steps, FULL)
    opened = FULL.open("make check pass")
    trigger = policy.tokens(opened) + 10
    outcome = asyncio.run(run_agent(opened, policy, bench.toolbox, Budgets(summary_trigger=trigger), FULL))
    assert (outcome.stop, outcome.usage.summaries) == (StopCause.FINISHED, 1)
    said = outcome.conversation.messages[1].text
    assert "Your to-do list:\n- repair calc.py" in said
    assert "Jobs that run: 1 sleep 50." in said


def test_the_user_is_asked_where_there_is_one() -> None:
    async def answer(question: str) -> str:
        return f"{question} yes\n"

    async def silence(question: str) -> str:
        return " "

    def asked(ask: Ask | None) -> str:
        return Bench(outside=ExternalServices(ask=ask)).say_now("ask", question="May I?")

    assert asked(None).startswith("There is nobody to ask")
    assert asked(answer) == "May I? yes"
    assert asked(silence) == "(no answer)"


def online(web: Web | None = None) -> Bench:
    return Bench(more=["web_search", "web_fetch"], outside=ExternalServices(web=web))


PAGES = [
    {"title": "Sorting", "url": "https://docs.example/sorting", "text": "sorted() returns a list\nlist.sort() none"},
    {"title": "Lists", "url": "https://docs.example/lists", "text": "a list holds things in order"},
]


def test_the_web_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pages.json").write_text(json.dumps(PAGES))
    web = FixtureWeb(tmp_path)
    assert isinstance(web, Web)
    bench = online(web)
    assert bench.say_now("web_search", query="sorted list").split("\n") == [
        "Sorting <https://docs.example/sorting>",
        "  sorted() returns a list list.sort() none",
        "Lists <https://docs.example/lists>",
        "  a list holds things in order",
    ]
    assert bench.say_now("web_search", query="weather") == "No page was found."
    assert bench.say_now("web_fetch", url="https://docs.example/lists") == "a list holds things in order"
    assert "there is no page https://nowhere.example" in bench.say_now("web_fetch", url="https://nowhere.example")


def test_without_the_web_its_tools_say_so(tmp_path: Path) -> None:
    assert online().say_now("web_search", query="x") == "There is no way to the web from here."
    missing = online(FixtureWeb(tmp_path / "nothing"))
    assert missing.say_now("web_fetch", url="https://docs.example").startswith("The web gave nothing: the pages of")
