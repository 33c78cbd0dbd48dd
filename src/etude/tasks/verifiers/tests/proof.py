"""Saves the pool of a suite: the tests in which a grading may alter or withhold expected values. Later processes load
it, and need not repeat the trial runs that find these tests.

Only the chosen alterations and withheld values are saved, as positions in the sources; the rest of a pool is parsed
from the sources again. Invariant: gradings draw the same tests from a loaded pool as from the saved one, and a damaged
file counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from etude.tasks.verifiers.tests.pool import AlterableTest, Pool, alterable_tests, test_functions
from etude.tasks.verifiers.tests.suite import Suite


def dump_proof(pool: Pool, guess: float) -> bytes:
    """Return a suite's pool (the tests in which a grading may alter or withhold expected values) as bytes to store,
    with a checksum. `guess` is the probability that code passes by guessing instead of solving the task."""
    rows = [
        {
            "file": item.file,
            "path": item.function.path,
            "seconds": item.seconds,
            "chance": item.chance,
            "ways_to_tell": item.ways_to_tell,
            "alterations": [[*span, text.decode("utf-8", "surrogateescape")] for span, text in item.alterations],
            "withheld": [item.function.sites.index(site) for site in item.withheld],
        }
        for item in pool.alterable
    ]
    kept = {"guess": guess, "seconds": pool.seconds, "held": pool.held, "questions": rows}
    payload = json.dumps({**kept, "sources": _digest(pool.sources)}).encode()
    return hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def load_proof(data: bytes, suite: Suite, sources: Mapping[str, bytes]) -> Pool | None:
    """Return the pool that `dump_proof` stored, or None if the data is damaged or the pool has other sources."""
    kept = _verified(data)
    if not kept:
        return None
    if not kept["questions"]:
        return Pool(seconds=kept["seconds"])
    if kept["sources"] != _digest(sources):
        return None
    every = {(one.file, one.function.path): one for file in sources for one in alterable_tests(suite, file, sources)}
    names = {file: tuple(f.path[-1] for f in test_functions(file, source)) for file, source in sources.items()}
    alterable = tuple(_with_stored_choices(row, every[row["file"], tuple(row["path"])]) for row in kept["questions"])
    return Pool(sources, alterable, names, kept["seconds"], tuple(kept["held"]))


def guess_of(data: bytes) -> float:
    """Return the probability of passing by guessing that `dump_proof` stored, or 1.0 if the data is damaged."""
    return float(_verified(data).get("guess", 1.0))


def proof_inputs(suite: Suite, reference: str, instruction: str, user: str) -> str:
    """Return a digest of everything, except the environment, that the saved result of a suite's trial runs depends on.
    Resource limits are left out: the trial runs stayed within them, so they did not affect the result."""
    config = suite.config.model_dump_json(exclude={"seconds", "memory_mb", "disk_mb", "processes"})
    digest = hashlib.sha256(f"{_code()} {sys.version} {user} {config}\n".encode())
    for ids in (suite.fail_to_pass, suite.pass_to_pass, sorted(suite.may_skip), [reference, instruction]):
        digest.update(json.dumps(ids).encode())
    digest.update(_digest(suite.files).encode())
    return digest.hexdigest()


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, data in sorted(files.items()):
        digest.update(f"\n{path} {len(data)}\n".encode("utf-8", "surrogateescape") + data)
    return digest.hexdigest()


def _verified(data: bytes) -> dict[str, Any]:
    """Return the contents of a saved pool of tests, or an empty dictionary if the checksum is wrong."""
    digest, _, payload = data.partition(b"\n")
    found = digest.decode("ascii", "replace") == hashlib.sha256(payload).hexdigest()
    return dict(json.loads(payload)) if found else {}


def _with_stored_choices(row: Mapping[str, Any], item: AlterableTest) -> AlterableTest:
    return replace(
        item,
        seconds=row["seconds"],
        chance=row["chance"],
        ways_to_tell=row["ways_to_tell"],
        alterations=tuple(
            ((start, end), text.encode("utf-8", "surrogateescape")) for start, end, text in row["alterations"]
        ),
        withheld=tuple(item.function.sites[place] for place in row["withheld"]),
    )


@cache
def _code() -> str:
    """Return a digest of this package and of the programs that run in the box. If it changes, a suite's trial runs are
    repeated."""
    digest = hashlib.sha256()
    for package in ("etude.tasks.verifiers.tests", "etude.tasks.box"):
        for file in sorted(resources.files(package).iterdir(), key=lambda file: file.name):
            if file.is_file():
                digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()
