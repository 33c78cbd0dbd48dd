"""Calls the agent's functions and reports what each call returned or raised.

It is not told the expected values, so the agent's code cannot read them here. Standard input: 8 digits, the length of
a JSON job; the job; then a nonce. Only a forked child, with its standard streams closed, runs code of the agent. After
the child has ended, the parent reads the nonce and prints one report line that carries it. Exit code 0 means that
every call was made and reported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all the rest
    from typing import Any

READY = "etude-runner 1"
REPORT = "etude-report "
LARGEST = 1 << 20


def read_exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            break
        data += piece
    return data


def plain(value: object) -> bool:
    if type(value) is list:
        return all(plain(item) for item in value)
    if type(value) is float:
        return value == value and value not in (float("inf"), float("-inf"))
    return value is None or type(value) in (int, bool, str)


def call(case: dict[str, Any]) -> dict[str, str]:
    # BaseException: a SystemExit or KeyboardInterrupt raised by the agent's code is an outcome of this case only.
    try:
        function = getattr(importlib.import_module(case["module"]), case["function"])
        value = function(*case["arguments"])
        if plain(value):
            return {"value": json.dumps(value, ensure_ascii=True, allow_nan=False)}
        return {"raised": "a value that is not plain"}
    except BaseException as error:  # noqa: BLE001
        return {"raised": type(error).__name__}


def child(job: dict[str, Any], pipe: int) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    # Close all other descriptors, so that the agent's code cannot use what this process inherited.
    os.closerange(3, pipe)
    os.closerange(pipe + 1, 1 << 16)
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_seconds"], job["cpu_seconds"] + 1))
    sys.dont_write_bytecode = True
    sys.path.insert(0, job["workdir"])
    for case in job["cases"]:
        line = json.dumps([case["id"], call(case)]).encode() + b"\n"
        while line:
            line = line[os.write(pipe, line) :]


def collect(process: int, pipe: int) -> tuple[bytes, int | None]:
    """Return what the child wrote until it ended, and its exit status. Processes that the child left behind are not
    waited for. A child that never ends is killed together with the box by the grader's time limit.

    Every wait is a `select`, since `sleep` does not work under the library that shifts the clock for the gate."""
    data, status, open_pipe = b"", None, True
    while status is None or open_pipe:
        ready = select.select([pipe] if open_pipe else [], [], [], 0.02 if open_pipe else 0.0005)[0]
        if ready:
            piece = os.read(pipe, 65536)
            open_pipe = bool(piece)
            data += piece[: LARGEST - len(data)]
        if status is None and (not open_pipe or not ready):
            # After the end of the pipe the child is about to end: wait for it, unless it only closed its pipe.
            ended, code = os.waitpid(process, os.WNOHANG)
            if ended:
                status = os.waitstatus_to_exitcode(code)
        elif not ready:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    return data, status


def main() -> int:
    job = json.loads(read_exactly(int(read_exactly(8))))
    os.write(1, f"{READY}\n".encode())
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.close(source)
            child(job, sink)
            code = 0
        finally:
            os._exit(code)
    os.close(sink)
    data, status = collect(process, source)
    nonce = read_exactly(256).decode()
    rows = []
    for line in data.decode("utf-8", "replace").split("\n")[:-1]:
        try:
            rows.append(json.loads(line))
        except ValueError:
            rows.append(["", {"raised": "a line that is not JSON"}])
    sys.stdout.write(REPORT + json.dumps({"nonce": nonce, "status": status, "rows": rows}) + "\n")
    sys.stdout.flush()
    return 0 if status == 0 and len(rows) == len(job["cases"]) else 1


if __name__ == "__main__":
    sys.exit(main())
