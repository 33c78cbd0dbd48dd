"""Whatever clients send and models call, in every format: a prompt or a refusal, a call or text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.formats.test_properties import BY_LETTERS
from tests.text.formats.test_streaming import COMPACT
from tests.text.formats.tiny import Letters

from etude.serve.question import Said, SaidCall
from etude.serve.refusal import Refused
from etude.serve.rendering import Rendering
from etude.text.format import Format
from etude.text.formats import ChatMLFormat, GLM45Format, Qwen3CoderFormat
from etude.trace.conversation.messages import Role

PLAIN = ChatMLFormat(Letters(["<|im_start|>", "<|im_end|>"]))
FORMS: dict[str, Format] = {**BY_LETTERS, "compact": COMPACT, "chatml without thinking": PLAIN}
EDIT = {
    "name": "edit",
    "description": "Change a file.",
    "parameters": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "line": {"type": "integer"},
            "all": {"type": "boolean"},
            "more": {"type": ["array", "null"]},
            "text": {"type": "string"},
        },
        "required": ["path"],
    },
}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=3,
)
names = st.sampled_from(["edit", "gone", "two words", "", "functions.edit:0"])
arguments = st.one_of(
    st.dictionaries(st.sampled_from([*EDIT["parameters"]["properties"], "x y"]), values).map(json.dumps),  # type: ignore[index]
    st.text(max_size=8),
)
calls = st.builds(SaidCall, st.sampled_from("abc"), names, arguments)
said = st.builds(
    Said,
    st.sampled_from(Role),
    st.text(max_size=5),
    st.sampled_from(["", "so"]),
    st.lists(calls, max_size=2).map(tuple),
    st.sampled_from("abc"),
)
function = st.fixed_dictionaries(
    {"name": names, "description": st.text(max_size=3), "parameters": st.one_of(values, st.just(EDIT["parameters"]))}
)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=20, deadline=None)
@given(
    said=st.lists(said, max_size=6),
    functions=st.one_of(st.just([EDIT]), st.lists(function, max_size=2)),
    raw=st.one_of(st.text(max_size=12), calls.map(lambda call: f"{call.name} {call.arguments}")),
)
def test_a_prompt_or_a_refusal(name: str, said: list[Said], functions: list[Any], raw: str) -> None:
    try:
        rendering = Rendering(FORMS[name], functions)
        rendering.call(raw, True, "call")
        assert rendering.prompt(said)
    except Refused:
        pass


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=8, deadline=None)
@given(
    given=st.fixed_dictionaries(
        {"path": st.from_regex(r"[a-z]{1,6}\.py", fullmatch=True)},
        optional={"line": st.integers(-(10**10), 10**10), "all": st.booleans(), "text": st.text("ab c\n", max_size=6)},
    )
)
def test_what_a_model_calls_comes_back_with_its_types(name: str, given: dict[str, object]) -> None:
    """The text of an echoed call is the one that the model wrote, and types are those of the function's schema."""
    form = FORMS[name]
    if name == "compact":  # whose arguments go by their places, and whose whole numbers have at most nine digits
        line = given.get("line", 1)
        assert isinstance(line, int)
        given |= {"line": line % 10**9, "all": True, "more": 0, "text": given.get("text", "a")}
    rendering = Rendering(form, [EDIT])
    raw = rendering._raw(SaidCall("a", "edit", json.dumps(given)), 0)
    made = rendering.call(raw, True, "a")
    assert made is not None
    assert json.loads(made.arguments) == given
    assert rendering._raw(made, 0) == raw


def test_the_formats_without_types_are_these() -> None:
    assert {name for name, form in FORMS.items() if not form.typed} == {"glm4.5", "qwen3-coder", "compact"}
    assert not GLM45Format.typed
    assert not Qwen3CoderFormat.typed
