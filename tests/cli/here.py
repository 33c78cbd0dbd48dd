"""The command in this process, which has imported everything once. That it is installed and starts as a process of its
own is tested where that matters: help, interrupts, kills, whole runs."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from subprocess import CompletedProcess
from typing import Any

from tests.harness.chat_server import ChatServer
from typer.testing import CliRunner

from etude.cli.main import app


def etude(*words: object, given: str = "", columns: int = 80) -> CompletedProcess[str]:
    said = [str(word) for word in words]
    heard = signal.getsignal(signal.SIGTERM)
    try:
        ended = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, said, input=given, prog_name="etude")
    finally:
        signal.signal(signal.SIGTERM, heard)  # verbs take it for Ctrl-C
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return CompletedProcess(said, ended.exit_code, ended.stdout, ended.stderr)


@contextmanager
def serving(answers: Sequence[Any]) -> Iterator[ChatServer]:
    """An endpoint on a thread of its own: the command, which heeds signals, needs the main one."""
    server = ChatServer(answers)
    ready, over = threading.Event(), threading.Event()

    async def main() -> None:
        try:
            async with server:
                ready.set()
                await asyncio.to_thread(over.wait)
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        ready.wait()
        yield server
    finally:
        over.set()
        thread.join()
