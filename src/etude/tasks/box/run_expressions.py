"""Evaluates expressions in a module of several variants of a folder, each in its own process and folder.

Standard input: JSON with `files` (path: text), `variants` (each a map path: text that replaces or adds files), `module`
(the dotted name of the module in which the expressions are evaluated), `expressions` and `seconds` (CPU time per
expression). Standard output: a JSON list with an entry per variant: a list with each expression's repr, or null where
it raised an exception, took too long, or has no value that its repr spells out. The whole entry is null if the module
could not be imported.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all the rest
    from typing import Any

MEMORY = 256 << 20


class TooLong(BaseException):
    """Raised by the timer within an expression. Code under test that catches `Exception` does not catch it."""


def too_long(*_: object) -> None:
    raise TooLong


def spelt(expression: str, names: dict[str, Any], seconds: float) -> str | None:
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        text = repr(eval(expression, dict(names)))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        ast.literal_eval(text)
    except (Exception, TooLong):  # noqa: BLE001 - a variant may raise anything.
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return text


def in_child(folder: str, job: dict[str, Any]) -> list[str | None] | None:
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(source)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.signal(signal.SIGVTALRM, too_long)
        data = b"null"
        try:
            os.chdir(folder)
            sys.path.insert(0, folder)
            names = vars(importlib.import_module(job["module"]))
            data = json.dumps([spelt(one, names, job["seconds"]) for one in job["expressions"]]).encode()
        finally:
            with os.fdopen(sink, "wb") as file:
                file.write(data)
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as file:
        said = file.read()
    os.waitpid(process, 0)
    found: list[str | None] | None = json.loads(said or b"null")
    return found


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
