"""Tries an agent's build on correct and broken products, and derives the verdict. A product is a variant of the
workspace's files.

A build must succeed on every correct product and leave the right artifacts, and must fail on every broken one. All
products are hidden. Each is tried in a fresh box, in random order, and nothing in a box tells whether the product is
broken. So three kinds of cheating builds are wrong about some product: one that always succeeds, one that compares a
hash with that of the visible files, and one that copies a finished artifact.
"""

from __future__ import annotations

import random
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from etude.tasks.change import Change
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.archives import ArchiveError, members_of
from etude.tasks.verifiers.contract import SEALED, GradingContext
from etude.tasks.verifiers.inputs import read_json, read_table

FILE = "tests/products.json"
LARGEST = 4 << 20
"""Largest file, in bytes, that is compared with what the build should have made."""


class Artifact(BaseModel):
    """Required contents of a file that the build makes: a text, or exactly the given members of a tar or zip."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    text: str | None = None
    members: dict[str, str] | None = None

    @model_validator(mode="after")
    def _one(self) -> Artifact:
        if (self.text is None) == (self.members is None):
            raise ValueError("expected either text or members")
        return self


class Product(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: str
    succeeds: bool
    files: dict[str, str | None] = {}
    artifacts: dict[str, Artifact] = {}


class BuildConfig(BaseModel):
    """The settings in [metadata.etude.verifier] that all kinds of build share."""

    model_config = ConfigDict(strict=True, frozen=True)

    writes: list[str] = Field(min_length=1)
    """Patterns of the paths that the agent may change. Changes to all other files are ignored."""
    seconds: int = Field(30, ge=1)
    """CPU time limit, in seconds, of each box in which a build runs. The wall-clock limit is `WALL` times as long."""
    memory_mb: int = Field(512, ge=64)


@dataclass(frozen=True, slots=True)
class Trial:
    problem: str = ""
    """What the agent's build did wrong on one product (variant of the workspace); empty if nothing."""
    timed_out: bool = False
    starved: bool = False
    """Whether the host gave the run no CPU time until the clock expired: `problem` is not the build's fault."""
    code: int | None = None
    log: bytes = b""
    memory_bytes: int = 0


_Config = TypeVar("_Config", bound=BuildConfig)
_Product = TypeVar("_Product", bound=Product)


class ProductsVerifier(ABC, Generic[_Config, _Product]):
    """Tries the agent's build on all products and judges it. Subclasses define how one product is tried."""

    def __init__(self, task: Task, config: type[_Config], product: type[_Product]) -> None:
        path = task.directory / FILE
        self.config = read_table(task, config)
        self.products: list[_Product] = read_json(path, list[product])  # type: ignore[valid-type]
        if len({one.succeeds for one in self.products}) < 2:
            raise TaskError(f"{path}: expected products that succeed and products that do not")

    @abstractmethod
    async def try_product(self, product: _Product, context: GradingContext, change: Change) -> Trial:
        """Run the build on one product. `change` is the agent's change with the product's files on top."""

    def invalid_reason(self, files: Mapping[str, bytes]) -> str:
        """Return why the files hold no valid build, or an empty string. Called before any box is created."""
        return ""

    @property
    def sealed(self) -> bool:
        """Whether a build that guesses which products are broken passes with a probability of at most `SEALED`."""
        return 0.5 ** len(self.products) <= SEALED

    def protects(self, path: str) -> bool:
        return not any(fnmatchcase(path, pattern) for pattern in self.config.writes)

    async def examine(self, context: GradingContext) -> Verdict:
        started = time.monotonic()
        if reason := self.invalid_reason(context.files):
            return Verdict(Judgement.FAIL, reason, Evidence(touched_protected=context.change.touched))
        # The reason names the first failure found. The order is random, so that retries do not learn the products one
        # by one.
        products = random.Random(secrets.randbits(64)).sample(self.products, len(self.products))
        memory, right, trial = 0, 0, Trial()
        judgement, reason = Judgement.PASS, f"right about all {len(products)} products"
        for product in products:
            trial = await self.try_product(product, context, _with_product(context.change, product))
            memory = max(memory, trial.memory_bytes)
            if trial.problem:
                judgement = Judgement.ERROR if trial.starved else Judgement.FAIL
                reason = f"product {product.name}: {trial.problem}"
                break
            right += 1
        evidence = Evidence(
            exit_code=trial.code,
            tests_expected=len(products),
            tests_passed=right,
            touched_protected=context.change.touched,
            seconds=time.monotonic() - started,
            log=trial.log[-2000:].decode("utf-8", "replace"),
            memory_bytes=memory,
            timed_out=trial.timed_out,
            starved=trial.starved,
        )
        return Verdict(judgement, reason, evidence)


def difference(data: bytes, artifact: Artifact) -> str:
    """Return how a file differs from what it must contain, or "". Trailing white space of a text is ignored."""
    if artifact.text is not None:
        return "" if data.rstrip() == artifact.text.encode().rstrip() else "it holds another text"
    try:
        found: Mapping[str, bytes] = members_of(data)
    except ArchiveError as error:
        return str(error)
    wanted = {name: text.encode() for name, text in (artifact.members or {}).items()}
    if found.keys() != wanted.keys():
        return f"its members differ in {', '.join(sorted(found.keys() ^ wanted.keys())[:3])}"
    return next((f"its member {name} differs" for name in wanted if found[name] != wanted[name]), "")


def _with_product(change: Change, product: Product) -> Change:
    files = {path: None if text is None else text.encode() for path, text in product.files.items()}
    return Change({**change.files, **files}, executable=change.executable)
