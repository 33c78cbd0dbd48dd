"""etude trace: the verbs, their options and examples. What they do is in a file each, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import finish

trace = typer.Typer(
    help="What agents did: read it, and take it elsewhere.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

WhatArgument = Annotated[
    str, typer.Argument(help="A trace file, a folder of them, or a session: its folder, its id, or `last`.")
]
IdOption = Annotated[list[str] | None, typer.Option("--id", help="Only the trace with this id; may be repeated.")]
SessionsOption = Annotated[
    Path | None, typer.Option(help="Where sessions are kept; ~/.local/state/etude/sessions if not given.")
]


@trace.command("show")
def show(what: WhatArgument, only: IdOption = None, sessions: SessionsOption = None) -> None:
    """Show what was said and done, turn by turn, in the terminal.

    Nothing is redacted: it is for your own eyes.

    \b
    Examples:
      etude trace show last
      etude trace show runs/tiny/rl/traces --id g000001-m02-a0
    """

    def verb() -> int:
        from etude.cli.trace.showing import show_command

        return show_command(what, only or [], sessions)

    finish(verb)


@trace.command("export")
def export(
    what: WhatArgument,
    to: Annotated[str, typer.Option(help="atif, openai, markdown or jsonl.")],
    out: Annotated[Path | None, typer.Option(help="A file, or a folder for one file per trace.")] = None,
    redact: Annotated[
        bool, typer.Option("--redact/--no-redact", help="Take out secrets, addresses and who and where you are.")
    ] = True,
    only: IdOption = None,
    sessions: SessionsOption = None,
) -> None:
    """Write traces and sessions in formats that others read. To standard output, if there is no --out.

    atif: trajectories for Harbor, ATIF 1.7. openai: chat messages, a line per context, to fine-tune on. markdown: a
    page to read. jsonl: a line per trace with all that training needs, token ids included; of a session only if its
    user agreed to that (`etude sessions consent`).

    Secrets are taken out unless you say --no-redact; what and how much is told on standard error. Token ids spell what
    was said, so a trace from which something was taken is written without them.

    \b
    Examples:
      etude trace export last --to markdown > session.md
      etude trace export runs/tiny/eval/final/traces --to openai --out traces.jsonl
      etude trace export runs/tiny/rl/traces --to atif --out trajectories/
    """

    def verb() -> int:
        from etude.cli.trace.exporting import export_command

        return export_command(what, to, out, only or [], sessions, redact=redact)

    finish(verb)
