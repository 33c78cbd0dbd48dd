"""Real parts for the tests: a tokenizer, an engine that samples from a script, the loop, and a bench of tools."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from etude.engine.protocol import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    Generation,
    StopReason,
)
from etude.harness import (
    Budgets,
    Observer,
    Outcome,
    OverlayWorkspace,
    Policy,
    Profile,
    ScriptedPolicy,
    Toolbox,
    ToolCall,
    ToolLimits,
    ToolResult,
    Workspace,
    builtin_schema,
    lazy_workspace,
    load_profile,
    run_agent,
)
from etude.harness.external_services import ExternalServices
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import BoxSpec, EmbeddedSandboxes, Sandboxes, open_sandboxes
from etude.text import CompactFormat, Tokenizer
from etude.trace import UNKNOWN_EXPERT

SAMPLE = {
    "calc.py": b"# the larger of two\ndef larger(a, b):\n    return min(a, b)\n",
    "check.py": b"from calc import larger\nif larger(2, 7) != 7:\n    print('FAIL larger')\n"
    b"    raise SystemExit(1)\nprint('ok')\n",
    "pack/other.py": b"value = 1\nname = 'other'\n",
}

FULL, COMPACT = load_profile("full"), load_profile("compact")


def repository(folder: Path) -> Path:
    """The sample, as a folder of files."""
    for path, data in SAMPLE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@cache
def compact_format() -> CompactFormat:
    texts = [
        *COMPACT.texts(),
        *FULL.texts(),
        *(data.decode() for data in SAMPLE.values()),
    ]
    return CompactFormat(Tokenizer.train(texts * 3, 700))


def open_boxes(folder: Path) -> EmbeddedSandboxes:
    return open_sandboxes(SandboxRecipe.model_validate({}), folder)


class ScriptedEngine:
    """Samples what `write` gives. Rows of experts name their position; versions grow with each token."""

    def __init__(self, write: Callable[[GenerateRequest], list[int]], *, context: int = 4096) -> None:
        self.write = write
        self.context = context
        self.requests: list[GenerateRequest] = []
        self.generations: list[Generation] = []
        self.closed: list[str] = []
        self.aborted: list[str] = []
        self.version = 0

    async def info(self) -> EngineInfo:
        return EngineInfo(self.version, self.context, compact_format().tokenizer.vocab_size, 2, 2)

    async def generate(self, request: GenerateRequest) -> Generation:
        self.requests.append(request)
        ids = self.write(request)[: request.sampling.max_tokens]
        stops = [place for place, token in enumerate(ids) if token in request.sampling.stop]
        ids = ids[: stops[0] + 1] if stops else ids
        total = len(request.prompt) + len(ids)
        places = np.arange(request.experts_from, total, dtype=np.uint16)
        experts = np.repeat(places, 4).reshape(-1, 2, 2)
        experts[-1] = UNKNOWN_EXPERT
        versions = np.arange(self.version, self.version + len(ids), dtype=np.int32)
        self.version += len(ids)
        rng = random.Random(request.sampling.seed)
        generation = Generation(
            id=request.id,
            tokens=np.array(ids, np.int32),
            logprobs=np.array([-rng.random() for _ in ids], np.float32),
            versions=versions,
            stop=StopReason.STOP if stops else StopReason.LENGTH,
            experts=experts,
            experts_from=request.experts_from,
        )
        self.generations.append(generation)
        return generation

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def open(self, conversations: list[str]) -> None: ...

    async def close(self, conversation: str) -> None:
        self.closed.append(conversation)

    async def update(self, version: int) -> None:
        self.version = version

    async def stats(self) -> EngineStats:
        return EngineStats(version=self.version)


def playing(turns: list[list[int]]) -> Callable[[GenerateRequest], list[int]]:
    """Plays turns in order; the last one again and again."""
    left = list(turns)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def written(*calls: str, text: str = "") -> list[int]:
    return compact_format().render_turn("", text, calls)


def act(
    steps: list[Any] | Policy,
    budgets: Budgets | None = None,
    *,
    profile: Profile = COMPACT,
    workspace: Workspace | None = None,
    outcome: Outcome | None = None,
    observer: Observer | None = None,
) -> Coroutine[Any, Any, Outcome]:
    """The loop over a policy, or the steps of a script, on the sample."""
    policy = ScriptedPolicy(steps, profile) if isinstance(steps, list) else steps
    toolbox = Toolbox(profile.schemas(), workspace or OverlayWorkspace(SAMPLE), ToolLimits(), profile)
    conversation = outcome.conversation if outcome else profile.open("make check pass")
    budgets = budgets or Budgets()
    return run_agent(conversation, policy, toolbox, budgets, profile, observer=observer, outcome=outcome)


def run(*arguments: Any, **options: Any) -> Outcome:
    return asyncio.run(act(*arguments, **options))


class Bench:
    """Tools on a workspace, called as a model calls them."""

    def __init__(
        self,
        workspace: Workspace | None = None,
        *,
        more: Sequence[str] = (),
        room: int = 10_000,
        outside: ExternalServices | None = None,
        **limits: Any,
    ) -> None:
        """With the tools of the full profile, and `more`."""
        self.workspace = workspace or OverlayWorkspace(SAMPLE)
        schemas = [*FULL.schemas(), *map(builtin_schema, more)]
        self.toolbox = Toolbox(schemas, self.workspace, ToolLimits(**limits), FULL, outside=outside)
        self.room = room

    async def call(self, name: str, **arguments: object) -> ToolResult:
        call = ToolCall("1", name, arguments, json.dumps(arguments))
        return await self.toolbox.run(call, max_tokens=self.room, count=len)

    async def say(self, name: str, **arguments: object) -> str:
        return (await self.call(name, **arguments)).output

    def say_now(self, name: str, **arguments: object) -> str:
        return asyncio.run(self.say(name, **arguments))


async def in_a_box(sandboxes: Sandboxes) -> Bench:
    image = await sandboxes.add_image(dict(SAMPLE))
    workspace = lazy_workspace(image, SAMPLE, lambda: sandboxes.create(BoxSpec(image)))
    return Bench(workspace, room=4_000, command_seconds=20.0)
