"""A profile: everything the harness says to the model, as data.

`compact` is for tiny models, `full` for those that read prose.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from string import Formatter

from etude.harness.policy import Conversation, Message, Role
from etude.harness.schema import SchemaError, ToolSchema, builtin_schema


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    tools: tuple[str, ...]
    system: str
    """May hold {tools}, one line per tool."""
    summary_request: str
    summary_resume: str
    """The user message that a new context starts from: {task}, {summary}, {count}, {edited}, {turns}."""
    nothing_edited: str
    cut_off: str
    """Said after a turn that was cut off before it called a tool."""
    wording: dict[str, str]
    """What tools say, by occasion."""

    def schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(builtin_schema(name) for name in self.tools)

    def system_text(self) -> str:
        return self.system.format(tools="\n".join(schema.usage() for schema in self.schemas()))

    def say(self, occasion: str, **values: object) -> str:
        return self.wording[occasion].format(**values)

    def open(self, task: str, conversation_id: str = "conversation") -> Conversation:
        """A fresh conversation: the system prompt and the task."""
        conversation = Conversation(conversation_id, task=task)
        conversation.messages += [Message(Role.SYSTEM, self.system_text()), Message(Role.USER, task)]
        return conversation

    def resume(self, old: Conversation, *, summary: str, edited: list[str], turns_left: int) -> Conversation:
        """The conversation that follows a self-summary: system prompt, task, summary and carried state."""
        count = old.summaries + 1
        text = self.summary_resume.format(
            task=old.task,
            summary=summary,
            count=count,
            edited=" ".join(edited) or self.nothing_edited,
            turns=turns_left,
        )
        root = old.id.partition("#")[0]
        new = Conversation(f"{root}#{count}", task=old.task, parent=old, summaries=count)
        new.messages += [Message(Role.SYSTEM, self.system_text()), Message(Role.USER, text)]
        return new

    def texts(self) -> list[str]:
        """Every fixed text of the profile and the names of its tools, without the places to fill: what a tokenizer
        must know well."""
        templates = [self.summary_request, self.summary_resume, self.nothing_edited, self.cut_off]
        templates += self.wording.values()
        plain = [" ".join(part for part, *_ in Formatter().parse(template)) for template in templates]
        return [self.system_text(), *plain, *self.tools]


def parse_profile(text: str, source: str) -> Profile:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"profile {source} is not TOML: {error}") from error
    expected = {field.name for field in fields(Profile)}
    if data.keys() != expected:
        wrong = sorted(expected ^ data.keys())
        raise SchemaError(f"profile {source}: missing or unknown fields {', '.join(wrong)}")
    for name in ("system", "summary_resume"):
        data[name] = data[name].strip("\n")
    return Profile(**{**data, "tools": tuple(data["tools"])})


@cache
def load_profile(name: str) -> Profile:
    """A profile that ships with the harness (`profiles/<name>.toml`)."""
    file = resources.files("etude.harness") / "profiles" / f"{name}.toml"
    if not file.is_file():
        raise SchemaError(f"there is no profile {name}.toml")
    profile = parse_profile(file.read_text(encoding="utf-8"), f"{name}.toml")
    profile.schemas()
    return profile
