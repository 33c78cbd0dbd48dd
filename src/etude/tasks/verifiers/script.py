"""Build and CI scripts: run on products that are sound and on products that are broken (`type = "script"`).

The script must succeed on every sound one and leave the artifacts that belong to it, and fail on every broken one. Both
are held back, each in a fresh box, and nothing in a box tells which it is: one that always succeeds, checks a hash of
what it has seen, or carries a finished artifact along is told by the first product that is unlike it.

task.toml            [metadata.etude.verifier]  type = "script", command, writes, seconds
tests/products.json  a list of products: name, succeeds, files (over the workspace; null: gone), artifacts
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from etude.sandbox.contract import Box, ExecResult, Limits, RequestRefused
from etude.tasks.change import Change
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.archives import ArchiveError, members_of
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.tests.starvation import Watch

FILE = "tests/products.json"
SEALED = 1e-2
_LARGEST = 4 << 20


class Artifact(BaseModel):
    """What a file must hold: a text, or the members of a tar or zip, all of them and no others."""

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


class _Config(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    command: list[str] = Field(min_length=1)
    writes: list[str] = Field(min_length=1)
    """Patterns of the paths that are the agent's; all others stay as they were."""
    seconds: int = Field(30, ge=1)
    """CPU time of one run; the wall clock is three times that."""
    memory_mb: int = Field(512, ge=64)


_PRODUCTS = TypeAdapter(list[Product])


class ScriptVerifier:
    def __init__(self, task: Task) -> None:
        path = task.directory / FILE
        try:
            self._config = _Config.model_validate({k: v for k, v in task.verifier.items() if k != "type"})
            self._products = _PRODUCTS.validate_json(path.read_bytes())
        except OSError as error:
            raise TaskError(f"{path}: expected a file: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise TaskError(f"{path} and metadata.etude.verifier: {field}: {first['msg']}") from error
        if len({product.succeeds for product in self._products}) < 2:
            raise TaskError(f"{path}: expected products that succeed and products that do not")

    @property
    def sealed(self) -> bool:
        """A script that flips a coin for each product is right about all of them this often."""
        return 0.5 ** len(self._products) <= SEALED

    def protects(self, path: str) -> bool:
        return not any(fnmatchcase(path, pattern) for pattern in self._config.writes)

    async def examine(self, stand: Stand) -> Verdict:
        started = time.monotonic()
        # Of many wrongs the first one found is told: never the same, lest a retry learns what is asked.
        products = random.Random(secrets.randbits(64)).sample(self._products, len(self._products))
        memory, right = 0, 0
        judgement, reason, done = Judgement.PASS, f"right about all {len(products)} products", None
        for product in products:
            change = Change(
                {**stand.change.files, **{path: _bytes(text) for path, text in product.files.items()}},
                executable=stand.change.executable,
            )
            limits = Limits(memory_mb=self._config.memory_mb, cpu_seconds=self._config.seconds)
            async with stand.box(limits, change) as box:
                with Watch() as watch:
                    done = await box.exec(self._config.command, timeout=3.0 * self._config.seconds)
                problem = await _problem(box, product, done)
                used = await box.stats()
                memory = max(memory, used.memory_bytes)
            if problem:
                ours = done.limit == "time" and watch.starved(used.cpu_seconds)
                judgement = Judgement.ERROR if ours else Judgement.FAIL
                reason = f"product {product.name}: {problem}"
                break
            right += 1
        evidence = Evidence(
            exit_code=done.code if done else None,
            tests_expected=len(products),
            tests_passed=right,
            touched_protected=stand.change.touched,
            seconds=time.monotonic() - started,
            log=(done.stdout + done.stderr)[-2000:].decode("utf-8", "replace") if done else "",
            memory_bytes=memory,
        )
        return Verdict(judgement, reason, evidence)


async def _problem(box: Box, product: Product, done: ExecResult) -> str:
    """What is wrong with a run, if anything."""
    if done.limit:
        return f"the script was ended by its limit of {done.limit}"
    if not product.succeeds:
        return "" if done.code else "the script succeeded, though the product is broken"
    if done.code:
        return f"the script failed with exit code {done.code}, though the product is sound"
    for path, artifact in product.artifacts.items():
        try:
            data = await box.read_file(path, max_bytes=_LARGEST)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, RequestRefused):
            return f"there is no file {path} that can be read"
        if problem := difference(data, artifact):
            return f"{path}: {problem}"
    return ""


def difference(data: bytes, artifact: Artifact) -> str:
    """Between a file and what it must hold. White space at the end of a text does not count."""
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


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
