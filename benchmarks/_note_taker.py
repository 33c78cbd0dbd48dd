"""Scripted sessions that a self-summary interrupts (_summary_sessions.toml), and the scripted model that plays them.

The model, a note taker, sees token ids and nothing else. Its steps are fixed, with placeholders for facts that it must
find in its prompt. Asked for a summary, it writes down every fact it sees; a fact that its summary leaves out is lost.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from etude.engine.protocol import EngineInfo, EngineStats, GenerateRequest, Generation, StopReason
from etude.harness import (
    Budgets,
    Message,
    Outcome,
    OverlayWorkspace,
    Profile,
    Role,
    TokenPolicy,
    TokenSampling,
    Toolbox,
    ToolLimits,
    run_agent,
)
from etude.harness.external_services import ExternalServices
from etude.text.calls import parse_call
from etude.text.format import Format
from etude.trace import TraceBuilder, TraceUsage

Style: TypeAlias = Literal["self", "prompt"]
SESSIONS = Path(__file__).with_name("_summary_sessions.toml")
PONDERED = "Hm, what of it all will be needed?"
"""The thinking that the note taker emits before a summary; the harness must not carry it over."""
UNKNOWN = "unknown"
LONG_LINES = 60
_WORDS = ("wind", "hills", "mill", "rivers", "barges", "grain", "stone", "quays", "until", "near", "turns", "over")


@dataclass(frozen=True, slots=True)
class Session:
    name: str
    asks: tuple[str, ...]
    files: dict[str, str]
    steps: tuple[str, ...]
    facts: dict[str, str]
    ends: dict[str, str]
    answers: tuple[str, ...] = ()
    summaries: int = 1
    rereads: int = 0

    def start(self) -> dict[str, bytes]:
        long = {name: long_text(f"{self.name} {name}") for name in ("long.txt", "longer.txt")}
        return {path: text.encode() for path, text in {**self.files, **long}.items()}


def read_sessions(path: Path = SESSIONS) -> list[Session]:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    lists = ("asks", "steps", "answers")
    return [
        Session(**{key: tuple(value) if key in lists else value for key, value in session.items()})
        for session in data["session"]
    ]


def long_text(seed: str) -> str:
    draw = random.Random(seed)
    return "".join(" ".join(draw.choices(_WORDS, k=8)) + "\n" for _ in range(LONG_LINES))


class NoteTaker:
    """An Engine that plays one session by its script.

    `forgets` makes it write empty summaries. `style` is the form of its summaries: bare facts ("self"), or the sections
    that the compaction prompt asks for ("prompt")."""

    def __init__(
        self,
        session: Session,
        form: Format,
        decode: Callable[[Sequence[int]], str],
        profile: Profile,
        *,
        forgets: bool = False,
        style: Style = "self",
    ) -> None:
        self.generations: list[tuple[list[int], Generation]] = []
        """Each prompt with the generation that followed it."""
        self._session, self._form, self._decode = session, form, decode
        self._forgets, self._style = forgets, style
        self._schemas = {schema.name: schema.call_schema() for schema in profile.schemas()}
        self._asked = form.user_message(profile.summary_request)
        self._steps = 0
        self._calls = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        prompt = request.prompt.tolist()
        seen = self._decode(prompt)
        asked = prompt[-len(self._asked) :] == self._asked
        ids = (self._summary(seen) if asked else self._step(seen))[: request.sampling.max_tokens]
        draw = random.Random(request.sampling.seed)
        generation = Generation(
            request.id,
            np.array(ids, np.int32),
            np.array([-draw.random() for _ in ids], np.float32),
            np.full(len(ids), len(self.generations), np.int32),
            StopReason.STOP if ids[-1] in self._form.stop_ids else StopReason.LENGTH,
            None,
        )
        self.generations.append((prompt, generation))
        return generation

    def _step(self, seen: str) -> list[int]:
        step = self._session.steps[self._steps]
        self._steps += 1
        for name, pattern in self._session.facts.items():
            found = re.findall(pattern, seen)
            step = step.replace(f"{{{name}}}", found[-1] if found else UNKNOWN)
        lines = step.split("\n")
        calls = [self._spelled(line[2:]) for line in lines if line.startswith("> ")]
        text = "\n".join(line for line in lines if not line.startswith("> "))
        return self._form.render_turn("", text, calls)

    def _spelled(self, raw: str) -> str:
        found = parse_call(raw, self._schemas)
        self._calls += 1
        if isinstance(found, str):
            return raw
        name, arguments = found
        return self._form.format_call(name, arguments, self._schemas[name], self._calls - 1)

    def _summary(self, seen: str) -> list[int]:
        if self._forgets:
            return self._form.render_turn("", "", [])
        noted = [match.group() for pattern in self._session.facts.values() for match in re.finditer(pattern, seen)]
        facts = "\n".join(dict.fromkeys(noted)) or "none"
        if self._style == "self":
            return self._form.render_turn(PONDERED, facts, [])
        paths = [path for path in self._session.files if path in seen]
        sections = {
            "Task": "\n".join(self._session.asks),
            "State": f"{self._steps} steps are done, nothing was checked",
            "Decisions": "none",
            "Files": "\n".join(paths) or "none",
            "Errors": "none",
            "Facts": facts,
            "Next steps": "the next one of the plan",
        }
        said = "\n".join(f"{n}. {title}: {text}" for n, (title, text) in enumerate(sections.items(), 1))
        return self._form.render_turn(PONDERED, said, [])

    async def info(self) -> EngineInfo:
        return EngineInfo(0, 1 << 20, 1 << 20, 0, 0)

    async def abort(self, request_id: str) -> None: ...

    async def open(self, conversations: list[str]) -> None: ...

    async def close(self, conversation: str) -> None: ...

    async def update(self, version: int) -> None: ...

    async def stats(self) -> EngineStats:
        return EngineStats()


@dataclass(slots=True)
class Played:
    """What came of one session."""

    outcome: Outcome
    """Outcome of the last user request; `usage` below adds up all requests."""
    ended: bool
    """Whether the files at the end are the ones that the session expects."""
    recorder: TraceBuilder
    engine: NoteTaker
    usage: TraceUsage = field(default_factory=TraceUsage)


async def play(
    session: Session,
    form: Format,
    decode: Callable[[Sequence[int]], str],
    profile: Profile,
    *,
    forgets: bool = False,
    style: Style = "self",
    budgets: Budgets | None = None,
) -> Played:
    """Play one session. `budgets` replaces the default budgets, but the summary trigger is always set so that reading
    one of the long files reaches it."""
    engine = NoteTaker(session, form, decode, profile, forgets=forgets, style=style)
    recorder = TraceBuilder()
    policy = TokenPolicy(engine, form, profile.schemas(), TokenSampling(1 << 20), recorder, conversation="session")
    answers = iter(session.answers)

    async def answer(question: str) -> str:
        return next(answers)

    workspace = OverlayWorkspace(session.start())
    toolbox = Toolbox(profile.schemas(), workspace, ToolLimits(), profile, outside=ExternalServices(ask=answer))
    opening = len(form.opening(profile.system_text(), max(session.asks, key=len)))
    allowed = budgets or Budgets(tokens=1 << 20, output_tokens=1 << 20)
    long = min(form.count(long_text(f"{session.name} {name}")) for name in ("long.txt", "longer.txt"))
    allowed = replace(allowed, summary_trigger=opening + long)
    outcome: Outcome | None = None
    conversation = profile.open(session.asks[0], "session")
    usage = TraceUsage()
    for place, ask in enumerate(session.asks):
        if place:
            conversation.messages.append(Message(Role.USER, ask))
            conversation.task = ask
        outcome = Outcome(conversation, usage=usage)
        await run_agent(conversation, policy, toolbox, allowed, profile, outcome=outcome)
        conversation = outcome.conversation
    assert outcome is not None
    files = {path: await _text(workspace, path) for path in session.ends}
    return Played(outcome, files == session.ends, recorder, engine, usage)


async def _text(workspace: OverlayWorkspace, path: str) -> str:
    try:
        return (await workspace.read(path)).decode()
    except FileNotFoundError:
        return ""
