"""The verbs of `etude trace`: options, help and examples. The code of a verb is imported only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import verb
from etude.cli.options import SessionsOption, group

trace = group("Traces of what agents did: show them, export them.")

WhatArgument = Annotated[
    str, typer.Argument(help="A trace file, a folder of traces, or a session: its folder, its id, or `last`.")
]
IdOption = Annotated[list[str] | None, typer.Option("--id", help="Only the trace with this id; may be repeated.")]


@trace.command("show")
@verb()
def show(what: WhatArgument, only: IdOption = None, sessions: SessionsOption = None) -> int:
    """Print traces turn by turn.

    Nothing is redacted: the output may contain secrets.

    \b
    Examples:
      etude trace show last
      etude trace show runs/tiny/rl/traces --id g000001-m02-a0
    """
    from etude.cli.trace.showing import show_command

    return show_command(what, only or [], sessions)


@trace.command("export")
@verb()
def export(
    what: WhatArgument,
    to: Annotated[str, typer.Option(help="Format: atif, openai, markdown or jsonl.")],
    out: Annotated[
        Path | None, typer.Option(help="A file, or a folder for one file per trace; by default standard output.")
    ] = None,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact/--no-redact",
            help="Remove secrets, addresses, and the names of the user, the host and the home folder.",
        ),
    ] = True,
    only: IdOption = None,
    sessions: SessionsOption = None,
) -> int:
    """Write traces and sessions in formats that other tools read.

    atif: trajectories for Harbor, ATIF 1.7. openai: chat messages for fine-tuning, a line per context. markdown: a page
    to read. jsonl: a line per trace with all that training needs, token ids included; a session only if its user has
    consented (`etude sessions consent`).

    Secrets are redacted unless --no-redact is given; how many of each kind is printed to standard error. Token ids
    reveal the text, so a trace in which something was redacted is written without them.

    \b
    Examples:
      etude trace export last --to markdown > session.md
      etude trace export runs/tiny/eval/final/traces --to openai --out traces.jsonl
      etude trace export runs/tiny/rl/traces --to atif --out trajectories/
    """
    from etude.cli.trace.exporting import export_command

    return export_command(what, to, out, only or [], sessions, redact=redact)
