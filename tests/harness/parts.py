"""Real parts for the tests: a tokenizer that knows the harness's words, and an engine that samples from a script."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from etude.engine.protocol import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    Generation,
    StopReason,
)
from etude.harness import load_profile
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import EmbeddedSandboxes, open_sandboxes
from etude.text import CompactFormat, Tokenizer
from etude.trace import UNKNOWN_EXPERT

SAMPLE = {
    "calc.py": b"# the larger of two\ndef larger(a, b):\n    return min(a, b)\n",
    "check.py": b"from calc import larger\nif larger(2, 7) != 7:\n    print('FAIL larger')\n"
    b"    raise SystemExit(1)\nprint('ok')\n",
    "pack/other.py": b"value = 1\nname = 'other'\n",
}


def repository(folder: Path) -> Path:
    """The sample, as a folder of files."""
    for path, data in SAMPLE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@cache
def compact_format() -> CompactFormat:
    texts = [
        *load_profile("compact").texts(),
        *load_profile("full").texts(),
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
