"""Writes a client's conversation in the model's format, and the model's calls as the client expects them.

Clients send sequences of messages that no chat template writes. They are put in order by fixed rules:
- the system messages at the beginning are one; a later one is a system message where the format has them there, else a
  user message;
- messages of the assistant that follow each other are one turn;
- the outputs after a turn answer its calls, in the order of the calls; a call without one was not carried out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from etude.serve.question import Function, Said, SaidCall
from etude.serve.refusal import Problem, Refused
from etude.text.calls import Arguments, CallSchema, Parameter
from etude.text.format import Format
from etude.trace.conversation.encoding import ConversationEncoder, ids_of
from etude.trace.conversation.messages import Message, Role, ToolCall, Turn
from etude.trace.conversation.openai_messages import NOT_CARRIED_OUT

_JOINT = "\n\n"
_LARGEST = 10**9
"""Whole numbers from here on are texts in the call grammars."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Rendering:
    """The format with the functions that one request offers."""

    def __init__(self, form: Format, functions: Sequence[Function]) -> None:
        """Raises Refused for functions that no format can declare."""
        for place, function in enumerate(functions):
            _check(function, f"tools.{place}")
        self._form = form.offering([{"type": "function", "function": dict(function)} for function in functions])
        self._functions = {str(function["name"]): function for function in functions}
        self._schemas = {name: call_schema(function) for name, function in self._functions.items()}

    def prompt(self, said: Sequence[Said]) -> list[int]:
        """Return the ids of a conversation and of the beginning of the assistant's turn. Raises Refused."""
        messages = self._messages(said)
        try:
            encoded = ConversationEncoder(self._form, self._schemas).begin(messages)
        except ValueError as error:  # what this format cannot write, such as thinking
            raise Refused(Problem.INVALID, str(error), field="messages") from error
        return [*ids_of(encoded.recalled), *encoded.given]

    def call(self, raw: str, complete: bool, call_id: str) -> SaidCall | None:
        """Return a call of the model; None if none was offered or it has no name, so that it is text. A call that does
        not parse has its raw text as arguments. Whether there is such a function, the client decides."""
        name = self._form.call_name(raw)
        if not name or not self._functions:
            return None
        found: tuple[str, Arguments] | str = ""
        if complete and _NAME.fullmatch(name):
            found = self._form.parse_call(raw, self._schemas if name in self._schemas else {name: CallSchema(name)})
        if isinstance(found, str):
            return SaidCall(call_id, name, raw)
        arguments = found[1] if self._form.typed else _typed(found[1], self._functions.get(name, {}))
        return SaidCall(call_id, name, json.dumps(arguments, ensure_ascii=False))

    def _messages(self, said: Sequence[Said]) -> list[Message]:
        system = [one.text for one in said[: _first(said)]]
        rest = said[_first(said) :]
        if not rest or rest[0].role is not Role.USER:
            raise Refused(Problem.INVALID, "the conversation must begin with a user message", field="messages")
        if rest[-1].role is Role.ASSISTANT:
            raise Refused(Problem.INVALID, "the last message must not be the assistant's", field="messages")
        messages = [Message(Role.SYSTEM, _JOINT.join(system))] if system else []
        waiting: tuple[ToolCall, ...] = ()
        made = 0
        for role, group in groupby(rest, key=lambda one: one.role):
            if role is Role.TOOL:
                messages += _outputs(waiting, list(group))
                waiting = ()
                continue
            messages += _outputs(waiting, [])
            waiting = ()
            if role is Role.ASSISTANT:
                turn = self._turn(list(group), made)
                waiting = turn.calls
                made += len(waiting)
                messages.append(Message(role, turn.text, turn))
            else:
                messages += [Message(role, one.text) for one in group]
        return messages

    def _turn(self, said: Sequence[Said], made: int) -> Turn:
        calls = [call for one in said for call in one.calls]
        # The raw text is final, so the call has no parsed arguments from which it could be written anew.
        written = [ToolCall(call.id, call.name, None, self._raw(call, made + n)) for n, call in enumerate(calls)]
        text, thinking = (
            _JOINT.join(filter(None, texts)) for texts in ([one.text for one in said], [one.thinking for one in said])
        )
        return Turn(text, thinking, tuple(written))

    def _raw(self, call: SaidCall, number: int) -> str:
        """Return the text of an earlier call in this format. Arguments that are no JSON object are a call that did not
        parse: the text is the model's own."""
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            return call.arguments
        if not isinstance(arguments, dict):
            return call.arguments
        with suppress(ValueError):  # this format cannot express the call
            schema = self._schemas.get(call.name) or CallSchema(call.name, tuple(map(Parameter, arguments)))
            given = arguments if self._form.typed else _as_texts(arguments, schema)
            return self._form.format_call(call.name, given, schema, number)
        return f"{call.name} {_text(arguments)}"


def _check(function: Function, place: str) -> None:
    """Raise Refused for a function whose name or parameters are not of the usual form."""
    parameters = function.get("parameters")
    properties = parameters.get("properties", {}) if isinstance(parameters, Mapping) else None
    required = parameters.get("required", []) if isinstance(parameters, Mapping) else None
    problem = ""
    if not _NAME.fullmatch(str(function["name"])):
        problem = f"the name {str(function['name'])[:80]!r} has other characters than letters, digits, _, - and ."
    elif not isinstance(properties, Mapping) or not all(isinstance(one, Mapping) for one in properties.values()):
        problem = f"{function['name']}: the properties of its parameters must be schemas by name"
    elif not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        problem = f"{function['name']}: its required parameters must be a list of names"
    if problem:
        raise Refused(Problem.INVALID, f"{place}: {problem}", field=place)


def call_schema(function: Function) -> CallSchema:
    """Return the schema by which the compact grammar reads a call: required parameters first, whole numbers as such,
    and text to the end of the call for the last."""
    declared = function.get("parameters") or {}
    properties = declared.get("properties") or {}
    required = [name for name in properties if name in (declared.get("required") or ())]
    names = [*required, *(name for name in properties if name not in required)]
    parameters = []
    for place, name in enumerate(names):
        whole = _types(properties[name]) == {"integer"}
        kind = "int" if whole else "rest" if place == len(names) - 1 else "word"
        parameters.append(Parameter(str(name), kind, name in required))  # type: ignore[arg-type]
    return CallSchema(str(function["name"]), tuple(parameters))


def _first(said: Sequence[Said]) -> int:
    """Return the index of the first message that is not the system's."""
    return next((place for place, one in enumerate(said) if one.role is not Role.SYSTEM), len(said))


def _outputs(calls: Sequence[ToolCall], said: Sequence[Said]) -> Iterable[Message]:
    texts = {}
    for one in said:
        if one.answers not in {call.id for call in calls}:
            raise Refused(
                Problem.INVALID,
                f"the output of the call {one.answers!r} does not follow a message with this call",
                field="messages",
            )
        texts[one.answers] = one.text
    return [Message(Role.TOOL, texts.get(call.id, NOT_CARRIED_OUT), call=call) for call in calls]


def _as_texts(arguments: Mapping[str, object], schema: CallSchema) -> dict[str, object]:
    """Return arguments as formats take them that write plain text: whole numbers where the schema has them, else
    texts."""
    whole = {parameter.name for parameter in schema.parameters if parameter.kind == "int"}
    return {
        name: value
        if isinstance(value, str) or (name in whole and type(value) is int and abs(value) < _LARGEST)
        else _text(value)
        for name, value in arguments.items()
    }


def _typed(arguments: Mapping[str, object], function: Function) -> dict[str, object]:
    """Return arguments that were written as text with the types of the function's JSON schema."""
    properties = (function.get("parameters") or {}).get("properties") or {}
    return {name: _typed_value(value, _types(properties.get(name))) for name, value in arguments.items()}


def _typed_value(value: object, types: set[str]) -> object:
    if not isinstance(value, str) or not types or "string" in types:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _types(schema: Any) -> set[str]:
    """Return the JSON types that a schema names; empty if it names none."""
    named = schema.get("type") if isinstance(schema, Mapping) else None
    return {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
