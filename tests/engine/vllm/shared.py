"""One engine for all tests of a module, since vLLM's start takes half a minute on an idle machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engine import Case
from tests.engine.vllm.networks import SHAPES, PublishedVersions

from etude.engine.protocol import EngineError, EngineStats
from etude.engine.vllm.child import checked_interpreter
from etude.engine.vllm.service import VllmService

SLOTS = 6
_ADDED_UP = {field.name for field in fields(EngineStats)} - {"version", "running", "waiting"}


def vllm_or_skip() -> None:
    """Skip where vLLM is not installed, or fail if ETUDE_NEED_VLLM says that it must be."""
    try:
        checked_interpreter()
    except EngineError as error:
        if os.environ.get("ETUDE_NEED_VLLM"):
            raise
        pytest.skip(f"needs vLLM: make vllm ({error})")


def start(versions: PublishedVersions, dtype: str = "float32", **recipe: Any) -> VllmService:
    settings = {"slots": SLOTS, "context": 96, "cache_slots": 8, **recipe}
    return VllmService(versions.folder, settings, dtype, 1, str(versions.location))


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other test of this machine has a vLLM: each takes 3 GiB and a core."""
    with (Path(tempfile.gettempdir()) / "etude-tests-of-vllm").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def shared_engine(root: Path, family: str, **recipe: Any) -> Iterator[Shared]:
    vllm_or_skip()
    versions = PublishedVersions(root, SHAPES[family])
    with alone():
        shared = Shared(versions, start(versions, **recipe), recipe.get("cache_at_swap", "reset"))
        try:
            yield shared
        finally:
            shared.service.end()


class Shared:
    def __init__(self, versions: PublishedVersions, service: VllmService, policy: str) -> None:
        self.versions, self.service, self.policy = versions, service, policy

    def case(self) -> Case:
        case = Case(None, self.versions.reference, self.versions.publish, self.versions.publish_damaged, SLOTS)
        case.policy, case.rounds_until_aborted = self.policy, 25

        async def make() -> Fresh:
            """Return the engine as if it had just begun, with the weights of its checkpoint."""
            case.first = self.versions.publish_first_again()
            await self.service.update(case.first)
            return Fresh(self.service, await self.service.stats())

        case.make = make
        return case


class Fresh:
    """The engine, with the counters of its stats set to 0."""

    def __init__(self, service: VllmService, before: EngineStats) -> None:
        self._service, self._before = service, before
        for name in ("info", "generate", "begin", "pull", "abort", "open", "close", "update"):
            setattr(self, name, getattr(service, name))

    async def stats(self) -> EngineStats:
        stats = await self._service.stats()
        for name in _ADDED_UP:
            setattr(stats, name, getattr(stats, name) - getattr(self._before, name))
        return stats
