"""Profiles: data files with all texts that the harness sends to the model, and the tools that it offers.

The profile `compact` is for tiny models, `full` for models that can read prose.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from string import Formatter

from etude.harness.context.prompt_facts import Surroundings
from etude.harness.schema import SchemaError, ToolSchema, builtin_schema
from etude.trace.conversation.messages import Conversation, Message, Role

MOST_READ = 40
FACTS = frozenset({"system", "limits", "status", "recent", "rules"})
"""Names of the facts about the environment that a profile can include; each is a field of Surroundings."""


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    tools: tuple[str, ...]
    system: str
    """The system prompt. {tools} is replaced by one line per tool."""
    summary_request: str
    summary_resume: str
    """Template of the user message that starts the conversation after a self-summary, with the fields {task},
    {summary}, {count}, {edited}, {turns}, {todo}, {jobs}, {read}."""
    nothing: str
    """Text for an empty list (edited files, to-do list, jobs) in the message after a self-summary."""
    cut_off: str
    """Message sent to the model after a turn that was cut off before it called a tool."""
    wording: dict[str, str]
    """Templates of tool results and notices, by the occasion on which they are sent, such as "unknown_tool"."""
    silent: str = ""
    """Message sent to the model after the model sent an empty message. If `silent` is "", nothing is sent, and the
    model's empty message is its final answer."""
    repeated: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    """Template for each fact in FACTS, with {text} and, for rules, {path}. A fact without a template is left out."""

    def schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(builtin_schema(name) for name in self.tools)

    def without(self, names: Collection[str]) -> Profile:
        """Return the profile without these tools. Raises SchemaError for a name that no tool of the harness has."""
        for name in names:
            builtin_schema(name)
        return (
            replace(self, tools=tuple(name for name in self.tools if builtin_schema(name).name not in names))
            if names
            else self
        )

    def system_text(self) -> str:
        return self.system.format(tools="\n".join(schema.usage() for schema in self.schemas()))

    def say(self, occasion: str, **values: object) -> str:
        """Return the template in `wording` for an occasion, or else for "refused", filled in with `values`."""
        words = self.wording.get(occasion, self.wording["refused"])
        return words.format(**{"problem": occasion, **values})

    def say_if_known(self, occasion: str, otherwise: str, **values: object) -> str:
        return self.say(occasion, **values) if occasion in self.wording else otherwise

    def open(
        self, task: str, conversation_id: str = "conversation", surroundings: Surroundings | None = None
    ) -> Conversation:
        """Start a conversation: the system prompt with facts about the environment, and the task as the user
        message."""
        conversation = Conversation(conversation_id, task=task)
        system = "\n\n".join([self.system_text(), *self.fact_texts(surroundings or Surroundings())])
        conversation.messages += [Message(Role.SYSTEM, system), Message(Role.USER, task)]
        return conversation

    def fact_texts(self, surroundings: Surroundings) -> Iterator[str]:
        texts = {
            "system": surroundings.system,
            "limits": surroundings.limits,
            "status": "\n".join(surroundings.status),
            "recent": "\n".join(surroundings.recent),
        }
        for fact, text in texts.items():
            if text and fact in self.facts:
                yield self.facts[fact].format(text=text)
        if "rules" in self.facts:
            for path, text in surroundings.rules:
                yield self.facts["rules"].format(path=path, text=text)

    def resume(
        self,
        old: Conversation,
        *,
        summary: str,
        edited: list[str],
        turns_left: int,
        todo: Sequence[str] = (),
        jobs: Sequence[tuple[int, str]] = (),
        read: Sequence[str] = (),
        cut_off: bool = False,
    ) -> Conversation:
        """Start the conversation that follows a self-summary, from system prompt, task, summary and state such as the
        to-do list. A summary that is empty or `cut_off` by its token limit is marked as such if the profile has a text
        for that."""
        count = old.summaries + 1
        if not summary:
            summary = self.say_if_known("no_summary", summary)
        elif cut_off:
            summary = self.say_if_known("cut_summary", summary, text=summary)
        text = self.summary_resume.format(
            task=old.task,
            summary=summary,
            count=count,
            edited=" ".join(edited) or self.nothing,
            todo="\n".join(todo) or self.nothing,
            read=_latest(read) or self.nothing,
            jobs="; ".join(f"{number} {command}" for number, command in jobs) or self.nothing,
            turns=turns_left,
        )
        root = old.id.partition("#")[0]
        new = Conversation(f"{root}#{count}", task=old.task, parent=old, summaries=count)
        new.messages += [old.messages[0], Message(Role.USER, text)]
        return new

    def texts(self) -> list[str]:
        templates = [self.summary_request, self.summary_resume, self.nothing, self.cut_off]
        templates += [*self.wording.values(), *filter(None, (self.silent, self.repeated))]
        plain = [" ".join(part for part, *_ in Formatter().parse(template)) for template in templates]
        return [self.system_text(), *plain, *(schema.name for schema in self.schemas())]


def _latest(paths: Sequence[str]) -> str:
    more = len(paths) - MOST_READ
    shown = " ".join(paths[-MOST_READ:])
    return f"{shown} (and {more} before)" if more > 0 else shown


def parse_profile(text: str, source: str) -> Profile:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"profile {source} is not TOML: {error}") from error
    expected = {field.name for field in fields(Profile)}
    data = {"facts": {}, "silent": "", "repeated": "", **data}
    if data.keys() != expected:
        wrong = sorted(expected ^ data.keys())
        raise SchemaError(f"profile {source}: missing or unknown fields {', '.join(wrong)}")
    if unknown := data["facts"].keys() - FACTS:
        raise SchemaError(f"profile {source}: facts are {', '.join(sorted(FACTS))}, not {', '.join(sorted(unknown))}")
    for name in ("system", "summary_resume"):
        data[name] = data[name].strip("\n")
    return Profile(**{**data, "tools": tuple(data["tools"])})


@cache
def load_profile(name: str) -> Profile:
    file = resources.files("etude.harness") / "profiles" / f"{name}.toml"
    if not file.is_file():
        raise SchemaError(f"there is no profile {name}.toml")
    profile = parse_profile(file.read_text(encoding="utf-8"), f"{name}.toml")
    profile.schemas()
    return profile


@cache
def compaction_request() -> str:
    """Return the long request for a self-summary, which is sent instead of `Profile.summary_request` if the recipe has
    `compaction = "prompt"`."""
    file = resources.files("etude.harness") / "profiles" / "compaction.txt"
    return file.read_text(encoding="utf-8").strip()
