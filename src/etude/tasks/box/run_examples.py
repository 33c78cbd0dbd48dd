"""Runs the examples of a documentation in a box and reports what each step printed or raised.

It is not told the expected output, so the code under test cannot read it here. Standard input: 8 digits, the length of
a JSON job; the job; then a nonce, which proves that this script wrote the report. Each run of the job is a forked
child. If the run asks for it, the child first replaces one library function by a version that returns a wrong value,
to find out which examples depend on that function; then it executes the run's steps in order. The report is one line
on standard output, with the nonce.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import resource
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all the rest
    from types import ModuleType
    from typing import Any

REPORT = "etude-examples "
LARGEST = 1 << 16
"""Maximum number of characters kept of what one step prints, and of the exception that it raises."""


def read_exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            break
        data += piece
    return data


def replace(module: str, name: str, instead: str) -> None:
    owner: Any = importlib.import_module(module)
    *owners, last = name.split(".")
    for part in owners:
        owner = getattr(owner, part)
    true, answers = getattr(owner, last), {"none": None, "object": object()}

    def replacement(*arguments: Any, **named: Any) -> Any:
        return answers[instead] if instead in answers else spoilt(true(*arguments, **named))

    replacement.__name__, replacement.__qualname__, replacement.__module__ = last, name, module
    setattr(owner, last, replacement)


def spoilt(value: Any) -> Any:
    """Return a value that differs from this one, of the same type for plain types."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "~"
    if isinstance(value, list):
        return [*value, None]
    if isinstance(value, tuple):
        return (*value, None)
    if isinstance(value, dict):
        return {**value, "~": None}
    if isinstance(value, set):
        return value | {None}
    return object()


def own_names(module: ModuleType) -> dict[str, object]:
    """Return the names that a module defines itself, without those that it imports."""
    kept = {}
    for name, value in vars(module).items():
        made_here = not callable(value) or getattr(value, "__module__", "") == module.__name__
        if made_here and not isinstance(value, type(sys)) and not name.startswith("__"):
            kept[name] = value
    return kept


def step(source: str, mode: str, names: dict[str, object]) -> dict[str, str]:
    printed, raised = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, "<example>", mode), names)
        except BaseException as error:  # noqa: BLE001
            raised = traceback.format_exception_only(type(error), error)[-1]
    return {"printed": printed.getvalue()[:LARGEST], "raised": raised[:LARGEST]}


def child(run: dict[str, Any], pipe: int, seconds: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    if run["instead"]:
        replace(*run["instead"])
    names = own_names(importlib.import_module(run["module"])) if run["module"] else {}
    names["__name__"] = "example"
    for one in run["steps"]:
        line = json.dumps(step(one["source"], one["mode"], names)).encode() + b"\n"
        while line:
            line = line[os.write(pipe, line) :]


def outcomes(run: dict[str, Any], seconds: int) -> list[Any]:
    """Run the steps of one run in a forked child. Return the outcomes of those that ended before the child did."""
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(source)
            child(run, sink, seconds)
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        lines = stream.read().split(b"\n")[:-1]
    os.waitpid(process, 0)
    return [json.loads(line) for line in lines]


def main() -> int:
    job = json.loads(read_exactly(int(read_exactly(8))))
    sys.dont_write_bytecode = True
    sys.path.insert(0, job["workdir"])
    found = [outcomes(run, job["seconds"]) for run in job["runs"]]
    nonce = read_exactly(256).decode()
    sys.stdout.write(REPORT + json.dumps({"nonce": nonce, "runs": found}) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
