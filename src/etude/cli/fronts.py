"""What `etude agent` and `etude chat` share: whom they talk to, where sessions lie, and what an agent may do."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from etude.harness import ChatPolicy, ChatSession, Endpoint, Observer, Permissions, Policy, session_schemas
from etude.harness.outside import Outside
from etude.harness.permissions import AskUser, Rule, rules_of
from etude.harness.remembered import RememberedRules
from etude.harness.sessions import SavedSession, SessionError, SessionRecord, list_sessions, load_session
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.sandbox import beside, open_sandboxes, temporary_store

LAST = "last"
BOX = SandboxRecipe(memory_mb=4096, processes=512, command_seconds=120.0)
"""A user's repository needs more than a task of a tiny model."""

OpenPolicy = Callable[[AsyncExitStack], Policy]
"""Makes the agent; what has to be ended with the front goes on the stack."""


@dataclass(frozen=True, slots=True)
class Front:
    """An agent to talk to."""

    model: str
    harness: HarnessRecipe
    sandbox: SandboxRecipe
    open_policy: OpenPolicy


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    url: str
    model: str
    key: str
    """Name of the environment variable that holds the key."""
    context: int
    turns: int


def endpoint_front(options: EndpointOptions) -> Front:
    harness = HarnessRecipe(
        profile="full",
        max_turns=options.turns,
        max_tool_calls=options.turns * 8,
        max_tokens=options.turns * 8_000,
        max_turn_tokens=16_000,
        max_output_tokens=16_000,
        summary_trigger=options.context * 3 // 4,
        max_summary_tokens=4_000,
        wall_seconds=6 * 3600.0,
    )
    return Front(options.model, harness, BOX, partial(_endpoint_policy, options, harness))


def _endpoint_policy(options: EndpointOptions, harness: HarnessRecipe, stack: AsyncExitStack) -> Policy:
    endpoint = Endpoint(options.url, options.model, os.environ.get(options.key, ""))
    policy = ChatPolicy(endpoint, session_schemas(harness))
    stack.push_async_callback(policy.aclose)
    return policy


@dataclass(frozen=True, slots=True)
class Rules:
    """What an agent in the user's own folder may do, as the command line says it; with `here` false it works on a view,
    where nothing has to be asked."""

    here: bool = False
    allow: Sequence[str] = field(default_factory=tuple)
    deny: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def given(cls, here: bool, allow: Sequence[str] | None, deny: Sequence[str] | None, shell: bool) -> Rules:
        no_shell = () if shell or not here else ("execute",)
        return cls(here, tuple(allow or ()), (*(deny or ()), *no_shell))

    def parsed(self) -> tuple[list[Rule], list[Rule]]:
        if (self.allow or self.deny) and not self.here:
            raise SessionError(
                "--allow and --deny are for --here: without it the agent works on a copy, and asks nothing"
            )
        return rules_of(self.allow), rules_of(self.deny)


@dataclass(frozen=True, slots=True)
class Where:
    """Where an agent works, and what of it is kept."""

    folder: Path
    sessions: Path | None = None
    """None keeps nothing."""
    shell: bool = True
    rules: Rules = Rules()

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise SessionError(f"{self.folder} is not a folder")


async def open_session(
    stack: AsyncExitStack,
    front: Front,
    where: Where,
    policy: Policy,
    *,
    saved: SavedSession | None = None,
    observer: Observer | None = None,
    ask: AskUser | None = None,
    outside: Outside | None = None,
) -> ChatSession:
    """A new session, or `saved` gone on with. `ask` is asked for permission in the user's own folder."""
    permissions = permissions_for(where.rules, where.folder, ask)
    sandboxes = None
    if where.shell and permissions is None:
        boxes = stack.enter_context(temporary_store("etude-chat-"))
        sandboxes = open_sandboxes(beside(front.sandbox), boxes)
        stack.push_async_callback(sandboxes.close)
    record = None
    if saved is None and where.sessions is not None:
        record = begin_record(where.sessions, where.folder, front, where.rules.here)
    session = ChatSession(
        where.folder,
        policy,
        front.harness,
        front.sandbox,
        sandboxes,
        observer=observer,
        record=record,
        saved=saved,
        permissions=permissions,
        outside=outside,
    )
    return await stack.enter_async_context(session)


def state_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "etude"


def default_sessions() -> Path:
    return state_folder() / "sessions"


def permissions_for(rules: Rules, folder: Path, ask: AskUser | None) -> Permissions | None:
    """None where the agent works on a view. Rules that the user asked to keep hold where somebody can be asked only:
    a script says what it allows."""
    allow, deny = rules.parsed()
    if not rules.here:
        return None
    if ask is None:
        return Permissions(None, allow, deny)
    kept = RememberedRules(state_folder() / "permissions.json")
    return Permissions(ask, [*allow, *kept.of(folder)], deny, remember=partial(kept.add, folder))


def sessions_of(sessions: Path, folder: Path) -> Iterator[SavedSession]:
    """Of one folder, newest first."""
    mine = str(folder.resolve())
    found = (load_session(place) for place in list_sessions(sessions))
    return (session for session in found if session.about.get("folder") == mine)


def find_saved(sessions: Path, folder: Path, resume: str | None, here: bool) -> SavedSession | None:
    """By its name, or the newest of the folder."""
    if resume is None:
        return None
    if resume != LAST:
        saved = load_session(sessions / resume)
    else:
        newest = next(sessions_of(sessions, folder), None)
        if newest is None:
            raise SessionError(f"{sessions} has no session of {folder.resolve()}")
        saved = newest
    if bool(saved.about.get("here")) != here:
        place = "in the folder itself: go on with --here" if not here else "on a copy: go on without --here"
        raise SessionError(f"the session {saved.folder.name} works {place}")
    return saved


def begin_record(sessions: Path, folder: Path, front: Front, here: bool) -> SessionRecord:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    sessions.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = {"profile": front.harness.profile, "model": front.model, "folder": str(folder.resolve()), "here": here}
    return SessionRecord.begin(sessions / name, **about, consent=False)
