"""Runs the unittest suite of a folder against many variants of its files, each in its own process and folder.

Standard input: JSON with `files` (path: text), `tests` (the folder to find tests in), `variants` (each a map path:
text that replaces or adds files) and `seconds` (CPU time per variant). Standard output: a JSON list with an entry per
variant: [ids of all tests, ids of those that did not pass], or null if the suite could not be loaded or did not end by
itself.
"""

from __future__ import annotations

import io
import json
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


def ids_of(suite: Any) -> Iterator[str]:
    for test in suite:
        if isinstance(test, unittest.TestCase):
            yield test.id()
        else:
            yield from ids_of(test)


def outcome(folder: str, tests: str) -> list[list[str]] | None:
    os.chdir(folder)
    sys.path.insert(0, folder)
    suite = unittest.TestLoader().discover(tests, top_level_dir=folder)
    ids = sorted(ids_of(suite))
    if any(name.startswith("unittest.loader.") for name in ids):
        return None
    result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    wrong = [test for test, _ in [*result.errors, *result.failures]] + result.unexpectedSuccesses
    return [ids, sorted({getattr(test, "test_case", test).id() for test in wrong})]


def in_child(folder: str, job: dict[str, Any]) -> list[list[str]] | None:
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(source)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        # A limit on CPU time, since wall-clock time would run out on a busy machine.
        signal.setitimer(signal.ITIMER_VIRTUAL, job["seconds"])
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        data = b"null"
        try:
            data = json.dumps(outcome(folder, job["tests"])).encode()
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
