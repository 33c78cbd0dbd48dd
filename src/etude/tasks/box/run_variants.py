"""Looks at many variants of a folder of Python code, each in its own process and folder: runs the unittest suite, or
evaluates expressions in one of its modules.

Standard input: JSON with `files` (path: text), `variants` (each a map path: text that replaces or adds files), and
either

- `tests` (the folder to find tests in) and `seconds` (CPU time per variant), or
- `module` (a dotted name), `expressions` and `seconds` (CPU time per expression).

Standard output: a JSON list with an entry per variant: [ids of all tests, ids of those that did not pass], or a list
with the repr of each expression's value, null where it raised an exception, took too long, or has a value that its repr
does not spell out. The entry is null if the suite or the module could not be loaded, or did not end by itself.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import unittest

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all the rest
    from collections.abc import Iterator
    from typing import Any

MEMORY = 256 << 20
MOST_LATE = 5
"""Expressions that take too long, until no more of a variant are evaluated."""


def ids_of(suite: Any) -> Iterator[str]:
    for test in suite:
        if isinstance(test, unittest.TestCase):
            yield test.id()
        else:
            yield from ids_of(test)


def outcome(folder: str, tests: str, seconds: float) -> list[list[str]] | None:
    # A limit on CPU time, since wall-clock time would run out on a busy machine.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    suite = unittest.TestLoader().discover(tests, top_level_dir=folder)
    ids = sorted(ids_of(suite))
    if any(name.startswith("unittest.loader.") for name in ids):
        return None
    result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    wrong = [test for test, _ in [*result.errors, *result.failures]] + result.unexpectedSuccesses
    return [ids, sorted({getattr(test, "test_case", test).id() for test in wrong})]


class TooLong(BaseException):
    """Raised by the timer within an expression. Code under test that catches `Exception` does not catch it."""


def too_long(*_: object) -> None:
    raise TooLong


def spelt(expression: str, names: dict[str, Any], seconds: float) -> str | None:
    # It fires again and again, since code under test may catch what it raises.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        text = repr(eval(expression, dict(names)))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        ast.literal_eval(text)
    except Exception:  # noqa: BLE001 - a variant may raise anything.
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return text


def values(job: dict[str, Any]) -> list[str | None]:
    # Code that goes on nevertheless is killed, and so is a module that does not end.
    limit = 1 + math.ceil(2 * job["seconds"] * len(job["expressions"]))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    signal.signal(signal.SIGVTALRM, too_long)
    names = vars(importlib.import_module(job["module"]))
    found, late = [], 0
    for one in job["expressions"]:
        try:
            found.append(spelt(one, names, job["seconds"]) if late < MOST_LATE else None)
        except TooLong:
            found.append(None)
            late += 1
    return found


def in_child(folder: str, job: dict[str, Any]) -> list[Any] | None:
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(source)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        data = b"null"
        try:
            os.chdir(folder)
            sys.path.insert(0, folder)
            found = outcome(folder, job["tests"], job["seconds"]) if "tests" in job else values(job)
            data = json.dumps(found).encode()
        finally:
            with os.fdopen(sink, "wb") as file:
                file.write(data)
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as file:
        said = file.read()
    _, status = os.waitpid(process, 0)
    return json.loads(said) if status == 0 and said else None


def main() -> None:
    job = json.load(sys.stdin)
    sys.dont_write_bytecode = True
    found = []
    for variant in job["variants"]:
        folder = tempfile.mkdtemp()
        try:
            for name, text in {**job["files"], **variant}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            found.append(in_child(folder, job))
        finally:
            shutil.rmtree(folder)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
