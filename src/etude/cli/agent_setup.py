"""What `etude agent` and `etude chat` share: the model they talk to, their sessions, and the agent's permissions."""

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
from etude.harness.background import is_agent
from etude.harness.chunks import Embedder, usual_embedder
from etude.harness.external_services import Ask, ExternalServices
from etude.harness.permissions import AskUser, Rule, rules_of
from etude.harness.remembered_rules import RememberedRules
from etude.harness.sessions import SavedSession, SessionError, SessionRecord, load_session
from etude.harness.sessions import sessions_of as places_of
from etude.recipe.acting import HarnessRecipe, PricesRecipe, SandboxRecipe
from etude.sandbox import open_sandboxes, store_in, temporary_store, without_fleet

LAST = "last"
BOX = SandboxRecipe(memory_mb=4096, processes=512, command_seconds=120.0)
"""Sandbox limits of an agent behind an endpoint: above a recipe's defaults, since a user's repository needs more than
the tasks of a tiny model."""

OpenPolicy = Callable[[AsyncExitStack], Policy]
"""Creates the agent's policy and pushes its cleanup onto the given exit stack."""


@dataclass(frozen=True, slots=True)
class Front:
    """The agent that a command talks to."""

    model: str
    harness: HarnessRecipe
    sandbox: SandboxRecipe
    open_policy: OpenPolicy
    key: str = ""
    """Name of the environment variable that holds the endpoint's key. Exported traces must not contain its value."""
    embedder: Embedder | None = None


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    url: str
    model: str
    key: str
    """Name of the environment variable that holds the endpoint's key."""
    context: int
    turns: int
    tool_seconds: float = 0.0
    money: float = 0.0
    prices: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Prices per million tokens: input, cached input, output."""


def endpoint_front(options: EndpointOptions) -> Front:
    harness = harness_of(options)
    policy = partial(_endpoint_policy, options, harness)
    return Front(options.model, harness, BOX, policy, options.key, usual_embedder(os.environ))


def harness_of(options: EndpointOptions) -> HarnessRecipe:
    of_input, of_cached, of_output = options.prices
    if min(options.prices) < 0 or (options.money and not (of_input or of_output)):
        raise SessionError("--money needs --prices INPUT CACHED OUTPUT, each per million tokens and not negative")
    return HarnessRecipe(
        profile="full",
        max_turns=options.turns,
        max_tool_calls=options.turns * 8,
        max_tokens=options.turns * 8_000,
        max_turn_tokens=16_000,
        max_output_tokens=16_000,
        summary_trigger=options.context * 3 // 4,
        max_summary_tokens=4_000,
        max_tool_seconds=options.tool_seconds,
        max_money=options.money,
        prices=PricesRecipe(input=of_input, cached=of_cached, output=of_output),
        wall_seconds=6 * 3600.0,
    )


def _endpoint_policy(options: EndpointOptions, harness: HarnessRecipe, stack: AsyncExitStack) -> Policy:
    endpoint = Endpoint(options.url, options.model, os.environ.get(options.key, ""))
    policy = ChatPolicy(endpoint, session_schemas(harness))
    stack.push_async_callback(policy.aclose)
    return policy


@dataclass(frozen=True, slots=True)
class Rules:
    """Permissions from the command line. With `here` the agent works in the user's own folder, otherwise on a
    copy-on-write view of it, where nothing needs permission."""

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
                "--allow and --deny need --here: without it the agent works on a copy and asks for nothing"
            )
        return rules_of(self.allow), rules_of(self.deny)


@dataclass(frozen=True, slots=True)
class Where:
    """The folder that an agent works on, and where its session and its sandboxes are stored."""

    folder: Path
    sessions: Path | None = None
    """Folder in which sessions are saved. None: the session is not saved."""
    shell: bool = True
    rules: Rules = Rules()
    consent: bool = False
    """Whether the session may be trained on."""
    boxes: Path | None = None
    """Store for the agent's sandboxes. None: a temporary folder that is removed with the session."""

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
    question: Ask | None = None,
    record: SessionRecord | None = None,
) -> ChatSession:
    """Open a new session, or resume `saved`. A new session is recorded in `record`, or else in `where.sessions`. `ask`
    asks the user to permit an action in their own folder; `question` puts a question of the agent to the user."""
    permissions = permissions_for(where.rules, where.folder, ask)
    sandboxes = None
    if where.shell and permissions is None:
        boxes = stack.enter_context(store_in(where.boxes) if where.boxes else temporary_store("etude-chat-"))
        sandboxes = open_sandboxes(without_fleet(front.sandbox), boxes)
        stack.push_async_callback(sandboxes.close)
    if record is None and saved is None and where.sessions is not None:
        record = _begin_record(where.sessions, front, where)
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
        outside=ExternalServices(ask=question, embedder=front.embedder),
    )
    if where.consent:
        session.agree_to_training()
    return await stack.enter_async_context(session)


def state_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "etude"


def default_sessions() -> Path:
    return state_folder() / "sessions"


def permissions_for(rules: Rules, folder: Path, ask: AskUser | None) -> Permissions | None:
    """Return the permissions of an agent in the user's own folder; None if the agent works on a copy. Rules that the
    user saved in earlier sessions apply only with `ask`. Without `ask`, as in scripts, only the rules of the command
    line apply."""
    allow, deny = rules.parsed()
    if not rules.here:
        return None
    if ask is None:
        return Permissions(None, allow, deny)
    kept = RememberedRules(state_folder() / "permissions.json")
    return Permissions(ask, [*allow, *kept.of(folder)], deny, remember=partial(kept.add, folder))


def sessions_of(sessions: Path, folder: Path) -> Iterator[SavedSession]:
    """Yield the sessions of a folder, newest first, without those of background agents."""
    return (load_session(place) for place in places_of(sessions, folder) if not is_agent(place))


def find_saved(sessions: Path, folder: Path, resume: str | None, here: bool) -> SavedSession | None:
    """Return the session named `resume`, or for `last` the newest session of the folder; None if `resume` is None.
    Raise SessionError if the session worked in the folder itself and `here` is false, or the other way round."""
    if resume is None:
        return None
    if resume != LAST:
        if is_agent(sessions / resume):
            raise SessionError(f"{resume} is an agent in the background: `etude agents resume {resume}`")
        saved = load_session(sessions / resume)
    else:
        newest = next(sessions_of(sessions, folder), None)
        if newest is None:
            raise SessionError(f"{sessions} has no session of {folder.resolve()}")
        saved = newest
    if bool(saved.about.get("here")) != here:
        place = "in the folder itself: resume it with --here" if not here else "on a copy: resume it without --here"
        raise SessionError(f"the session {saved.folder.name} works {place}")
    return saved


def _begin_record(sessions: Path, front: Front, where: Where) -> SessionRecord:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    sessions.mkdir(parents=True, exist_ok=True, mode=0o700)
    return SessionRecord.begin(sessions / name, **about(front, where))


def about(front: Front, where: Where) -> dict[str, object]:
    """Return the fields of a session record's first line."""
    folder = str(where.folder.resolve())
    said: dict[str, object] = {"profile": front.harness.profile, "model": front.model, "folder": folder}
    return said | {"here": where.rules.here, "key": front.key, "consent": where.consent}
