"""Whatever is called: no exception escapes the loop, nothing runs unasked, and no file outside is seen or changed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.hostile import FILES, Nowhere, asked_to_run, calls_of, snapshot
from tests.harness.parts import ScriptedEngine, compact_format, playing
from tests.text.formats.tiny import SPECIALS, Letters

from etude.harness import (
    Answer,
    Budgets,
    FolderWorkspace,
    Outcome,
    OverlayWorkspace,
    Permissions,
    Policy,
    RequestedAction,
    ScriptedPolicy,
    TokenPolicy,
    TokenSampling,
    Toolbox,
    ToolCall,
    ToolLimits,
    Turn,
    Workspace,
    builtin_schema,
    load_profile,
    run_agent,
)
from etude.harness.tools import BUILTIN, terminal
from etude.text import Format
from etude.text.formats import FORMATS
from etude.trace import StopCause, TraceBuilder
from etude.trace.conversation.turn_tokens import parse_turn

SCHEMAS = {name: builtin_schema(name) for name in BUILTIN}
FULL = replace(load_profile("full"), tools=tuple(SCHEMAS), system="You mend code.")
BUDGETS = Budgets(turns=8, tool_calls=20, tokens=10**6, turn_tokens=10**6, output_tokens=500)
STOPS = (StopCause.FINISHED, StopCause.REPLIED)
SECRET = "the secret beside the folder"

played = st.lists(st.lists(calls_of(SCHEMAS), min_size=1, max_size=3), min_size=1, max_size=3)


def play(workspace: Workspace, policy: Policy, *, strict: bool = False) -> Outcome:
    toolbox = Toolbox(list(SCHEMAS.values()), workspace, ToolLimits(strict=strict), FULL)
    conversation = FULL.open("mend it")
    return asyncio.run(run_agent(conversation, policy, toolbox, BUDGETS, FULL))


@pytest.fixture(autouse=True, scope="module")
def impatient() -> Iterator[None]:
    """A call may ask to wait for minutes, and nothing here ever says anything."""
    checked = terminal._seconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "_seconds", lambda *asked: min(0.001, checked(*asked)))
        patch.setattr(terminal, "JOB_LOOK_SECONDS", 0.001)
        yield


def scripted(turns: Sequence[Sequence[ToolCall]]) -> ScriptedPolicy:
    steps = [Turn("", calls=tuple(calls), sampled_tokens=1) for calls in turns]
    return ScriptedPolicy([*steps, "done"], FULL)


def carried_out(turns: Sequence[Sequence[ToolCall]], outcome: Outcome) -> list[ToolCall]:
    """Up to the call that ended the run."""
    return [call for calls in turns for call in calls][: len(outcome.tools)]


def holds_in_memory(turns: list[list[ToolCall]], strict: bool) -> None:
    nowhere = Nowhere()
    workspace = OverlayWorkspace(FILES, nowhere)
    outcome = play(workspace, scripted(turns), strict=strict)
    assert outcome.stop in STOPS, outcome.error
    done = carried_out(turns, outcome)
    if outcome.stop is StopCause.REPLIED:
        assert len(done) == sum(map(len, turns)), "every call was answered"
    if not strict:  # where `null` is a mistake, that this oracle does not know
        assert nowhere.ran == [command for call in done if (command := asked_to_run(call)) is not None]
    assert all(path and not path.startswith(("/", "../")) and "\0" not in path for path in workspace.changed())
    asyncio.run(workspace.diff())


@contextmanager
def guarded_folder() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory() as place:
        around = Path(place)
        folder = around / "mine"
        for path, data in FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        (around / "secret.txt").write_text(SECRET)
        (folder / "out").symlink_to(around)
        yield around, folder


def holds_on_disk(around: Path, folder: Path, turns: list[list[ToolCall]]) -> None:
    asked: list[str] = []

    async def refuse(wish: RequestedAction) -> Answer:
        if wish.kind == "execute":
            asked.append(wish.what)
        return Answer(False)

    before = snapshot(around)
    workspace = FolderWorkspace(folder, Permissions(refuse))
    outcome = play(workspace, scripted(turns))
    asyncio.run(workspace.close())
    assert outcome.stop in STOPS, outcome.error
    assert snapshot(around) == before
    assert all(SECRET not in event.output for event in outcome.tools)
    done = carried_out(turns, outcome)
    assert asked == [command for call in done if (command := asked_to_run(call)) is not None]


def examples(few: int, many: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.soak)])


@examples(100, 10_000)
def test_calls(examples: int) -> None:
    settings(max_examples=examples)(given(turns=played, strict=st.booleans())(holds_in_memory))()


@examples(15, 500)
def test_calls_on_a_folder(examples: int) -> None:
    with guarded_folder() as (around, folder):

        @settings(max_examples=examples)
        @given(turns=played)
        def hold(turns: list[list[ToolCall]]) -> None:
            holds_on_disk(around, folder, turns)

        hold()


LETTERS = Letters()
TOOLS = [schema.openai() for schema in SCHEMAS.values()]
CALL_SCHEMAS = {name: schema.call_schema() for name, schema in SCHEMAS.items()}
FORMS: dict[str, Callable[[], Format]] = {
    name: (lambda make=make: make(LETTERS, TOOLS)) for name, make in FORMATS.items()
}
FORMS["compact"] = compact_format
every_format = pytest.mark.parametrize("name", FORMS)
known_calls = st.sampled_from(
    [("read", {"path": "calc.py"}), ("shell", {"command": "ls"}), ("grep", {"pattern": "min"}), ("list", {})]
)
harms = st.lists(
    st.tuples(st.sampled_from(["drop", "repeat", "letter", "mark"]), st.integers(0, 400), st.integers(0, 255)),
    max_size=4,
)


def harmed(form: Format, ids: list[int], harms: list[tuple[str, int, int]]) -> list[int]:
    """What a model might write instead: marks and letters lost, doubled, or strewn in."""
    marks = [token for name in SPECIALS if (token := LETTERS.special(name)) is not None]
    strewn = marks if not isinstance(form, type(compact_format())) else sorted(set(ids))
    for what, place, which in harms:
        at = place % (len(ids) + 1)
        if what == "drop":
            ids = ids[:at] + ids[at + 1 :]
        elif what == "repeat":
            ids = ids[:at] + ids[max(0, at - 3) :]
        else:
            ids = [*ids[:at], strewn[which % len(strewn)] if what == "mark" else form_letter(form, which), *ids[at:]]
    return ids


def form_letter(form: Format, which: int) -> int:
    letters = '{}"\\<>/=:,\n ae0'
    return form.render_turn("", letters[which % len(letters)], [])[0]


Written = list[tuple[str, list[tuple[str, dict[str, object]]], list[tuple[str, int, int]]]]
"""Per turn: what is said, which calls are made, and what goes wrong in writing them."""


def holds_for_words(name: str, written: Written) -> None:
    form = FORMS[name]()
    sampled = [
        harmed(
            form, form.render_turn("", text, [form.format_call(*call, CALL_SCHEMAS[call[0]]) for call in calls]), harm
        )
        for text, calls, harm in written
    ]
    meant = [parse_turn(form, ids, CALL_SCHEMAS, "1") for ids in sampled]
    end = form.render_turn("", "done", [])
    nowhere, recorder = Nowhere(), TraceBuilder()
    engine = ScriptedEngine(playing([*(ids or end for ids in sampled), end]), context=1 << 20)
    policy = TokenPolicy(engine, form, list(SCHEMAS.values()), TokenSampling(1 << 20), recorder, conversation="r")
    outcome = play(OverlayWorkspace(FILES, nowhere), policy)
    assert outcome.stop in (*STOPS, StopCause.TURNS), outcome.error
    calls = [call for turn in meant for call in turn.calls][: len(outcome.tools)]
    assert [event.arguments for event in outcome.tools] == [call.raw for call in calls], "byte for byte"
    assert all(not event.valid for event, call in zip(outcome.tools, calls, strict=True) if call.arguments is None)
    ran = [command for call in calls if call.arguments is not None and (command := asked_to_run(call)) is not None]
    assert nowhere.ran == ran
    recorded = [token for each in recorder.segments() for token in each.tokens[each.sampled].tolist()]
    assert recorded == [token for made in engine.generations for token in made.tokens.tolist()]


words = st.lists(st.tuples(st.text(max_size=8), st.lists(known_calls, max_size=3), harms), min_size=1, max_size=3)


@every_format
@examples(15, 500)
def test_words_of_a_model(name: str, examples: int) -> None:
    settings(max_examples=examples)(given(st.just(name), words)(holds_for_words))()
