"""The command in this process, which has imported everything once. That it is installed and starts as a process of its
own is tested where that matters: help, interrupts, kills, whole runs."""

from __future__ import annotations

from subprocess import CompletedProcess

from typer.testing import CliRunner

from etude.cli.main import app


def etude(*words: object, given: str = "", columns: int = 80) -> CompletedProcess[str]:
    said = [str(word) for word in words]
    ended = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, said, input=given, prog_name="etude")
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return CompletedProcess(said, ended.exit_code, ended.stdout, ended.stderr)
