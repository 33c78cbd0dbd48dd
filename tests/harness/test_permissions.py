"""What rules allow, what they never do, and what an agent is told that was not allowed something."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop

from etude.harness import Answer, Denied, Permissions, PermissionsError, RequestedAction, Rule
from etude.harness.external_services import FixtureWeb
from etude.harness.permissions import AskedWeb, always_rules, commands_in, rules_of
from etude.harness.remembered_rules import RememberedRules


def verdict(kind: str, what: str, *, allow: str = "", deny: str = "", asked: str = "") -> str:
    rules = [rules_of(filter(None, texts.split(", "))) for texts in (allow, deny, asked)]
    return Permissions(allow=rules[0], deny=rules[1], asked=rules[2]).verdict(RequestedAction(kind, what))


@pytest.mark.parametrize(
    ("command", "allow", "expected"),
    [
        ("git status", "execute:git status", "allow"),
        ("git status --short", "execute:git status", "allow"),
        ("git statusx", "execute:git status", "ask"),
        ("git  'status'", "execute:git status", "allow"),
        ("git status; rm -rf x", "execute:git status", "ask"),
        ("git status && git diff | head -3", "execute:git, execute:head", "allow"),
        ("git status & rm x", "execute:git status", "ask"),
        ("git status\nrm x", "execute:git status", "ask"),
        ("git status $(rm x)", "execute:git status", "ask"),
        ("git status `rm x`", "execute:git status", "ask"),
        ("git status > x", "execute:git status", "ask"),
        ("A=1 git status", "execute:git status", "ask"),
        ("git status 'x", "execute:git status", "ask"),
        ("if git status", "execute", "allow"),
        ("echo $(rm x) > y", "execute", "allow"),
        ("make  -j 2; ls", "execute:=make  -j 2; ls", "allow"),
        ("make -j 2; ls", "execute:=make  -j 2; ls", "ask"),
        ("rm x", "write", "ask"),
    ],
)
def test_a_command_is_allowed_by_the_words_it_begins_with(command: str, allow: str, expected: str) -> None:
    assert verdict("execute", command, allow=allow) == expected


def test_deny_beats_ask_beats_allow() -> None:
    assert verdict("execute", "git push", allow="execute", deny="execute:git push") == "deny"
    assert verdict("execute", "ls && git push -f", allow="execute", deny="execute:git push") == "deny"
    assert verdict("execute", "(cd x; git push)", allow="execute", deny="execute:git push") == "deny"
    assert verdict("execute", "git push", allow="execute", asked="execute:git push") == "ask"
    assert verdict("write", "src/a/b.py", allow="write:src/**") == "allow"
    assert verdict("write", "srcs/a.py", allow="write:src/**") == "ask"
    assert verdict("write", "src/key.pem", allow="write", deny="write:**.pem") == "deny"
    assert verdict("fetch", "https://docs.python.org/3/", allow="fetch:*.python.org") == "allow"
    assert verdict("fetch", "https://docs.python.org/3/", allow="fetch:https://docs.python.org/3") == "allow"
    assert verdict("fetch", "https://docs.python.org.evil/3/", allow="fetch:https://docs.python.org/") == "ask"
    assert verdict("fetch", "https://docs.python.org@evil/3/", allow="fetch:docs.python.org") == "ask"


@given(st.text("ab;&|'\" \t\n\\#(){}<>$`=!", min_size=1, max_size=14))
@settings(max_examples=150, deadline=None)
@example("a;b")
@example("a'';b")
@example("a \\\nb")
@example("a|&b")
@example('a "$(b)"')
def test_what_rules_for_one_command_allow_runs_no_other(tmp_path_factory: pytest.TempPathFactory, command: str) -> None:
    if verdict("execute", command, allow="execute:a") != "allow":
        return
    script = f"a() {{ :; }}\nb() {{ echo ran >&2; }}\nPATH=/nowhere\n{command}\n"
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, check=False)
    assert "ran" not in done.stderr, command


def test_yes_for_always_is_about_these_words() -> None:
    assert [str(rule) for rule in always_rules(RequestedAction("execute", "pytest -q 'a b' | tail"))] == [
        "execute:pytest -q 'a b'",
        "execute:tail",
    ]
    assert [str(rule) for rule in always_rules(RequestedAction("execute", "cat <x; rm x"))] == ["execute:=cat <x; rm x"]
    assert [str(rule) for rule in always_rules(RequestedAction("write", "a.py"))] == ["write"]
    assert [str(rule) for rule in always_rules(RequestedAction("fetch", "https://a.org/x"))] == ["fetch:a.org"]
    assert commands_in("a ;; b") is None


@pytest.mark.parametrize("command", ["pytest -q", "cat <x; rm x", "make 'a b' && ls"])
def test_what_always_allows_it_allows_again(command: str) -> None:
    wish = RequestedAction("execute", command)
    again = [Rule.parse(str(rule)) for rule in always_rules(wish)]
    assert Permissions(allow=again).verdict(wish) == "allow"


def test_input_to_a_command_is_no_command() -> None:
    typed = RequestedAction("execute", "git status", plain=False)
    assert Permissions(allow=[Rule("execute", "git")]).verdict(typed) == "ask"
    assert Permissions(allow=[Rule("execute")]).verdict(typed) == "allow"


@in_loop
async def test_the_answers_and_what_the_agent_is_told(tmp_path: Path) -> None:
    answers = [
        Answer(True),
        Answer(False, reason="use make"),
        Answer(True, instead="ls -a"),
        Answer(True, always=True, remember=True),
    ]
    asked: list[RequestedAction] = []

    async def ask(wish: RequestedAction) -> Answer:
        asked.append(wish)
        return answers.pop(0)

    store = RememberedRules(tmp_path / "rules.json")
    permissions = Permissions(ask, remember=lambda rules: store.add(tmp_path, rules))
    wish = RequestedAction("execute", "ls -l")
    assert await permissions.agree(wish) == wish
    with pytest.raises(Denied, match="the user said no to the command 'ls -l': use make"):
        await permissions.agree(wish)
    assert (await permissions.agree(wish)).what == "ls -a"
    # Two at once: the answer to the first holds for the second.
    assert await asyncio.gather(permissions.agree(wish), permissions.agree(wish)) == [wish, wish]
    assert len(asked) == 4
    assert store.of(tmp_path) == [Rule("execute", "ls -l")]
    assert store.of(tmp_path / "other") == []
    with pytest.raises(Denied, match="nobody can be asked"):
        await Permissions().agree(wish)
    with pytest.raises(Denied, match="a rule of the user's"):
        await Permissions(ask, deny=[Rule("execute", "ls")]).agree(wish)


@pytest.mark.parametrize("text", ["", "run:ls", "ls", ":ls"])
def test_what_is_no_rule_is_said(text: str) -> None:
    with pytest.raises(PermissionsError, match="is not a rule: expected write, execute or fetch"):
        Rule.parse(text)


def test_a_damaged_file_of_rules_is_said(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text("[]")
    with pytest.raises(PermissionsError, match="repair or delete it"):
        RememberedRules(tmp_path / "rules.json").of(tmp_path)


@in_loop
async def test_pages_of_the_web_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "pages.json").write_text('[{"url": "https://a.org/x", "title": "x", "text": "hello"}]')
    web = AskedWeb(FixtureWeb(tmp_path), Permissions(allow=[Rule("fetch", "a.org")]))
    assert await web.fetch("https://a.org/x") == "hello"
    for refused in (web.fetch("https://b.org/x"), web.search("hello")):
        with pytest.raises(Denied):
            await refused
