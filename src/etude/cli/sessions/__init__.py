"""etude sessions: the verbs, their options and examples. What they do is in a file each, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import finish

sessions = typer.Typer(
    help="What you did with agents: list it, say what it may be used for, see what became of it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

PlaceOption = Annotated[
    Path | None,
    typer.Option("--sessions", help="Where sessions are kept; ~/.local/state/etude/sessions if not given."),
]
FolderOption = Annotated[Path | None, typer.Option(help="Only sessions that worked on this folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@sessions.command("list")
def list_sessions(folder: FolderOption = None, as_json: JsonOption = False, place: PlaceOption = None) -> None:
    """Show the sessions, the newest first: what was asked, of which model, how it ended.

    The exit code is 1 if one cannot be read.

    \b
    Examples:
      etude sessions list
      etude sessions list --folder . --json
    """

    def verb() -> int:
        from etude.cli.sessions.listing import list_command

        return list_command(place, folder, as_json)

    finish(verb)


@sessions.command("check")
def check(folder: FolderOption = None, as_json: JsonOption = False, place: PlaceOption = None) -> None:
    """Count how many lines of the edits that you accepted still stand.

    A minute, ten minutes, an hour, a day and a week after each; what is due is counted now, once, and written to the
    session as a signal. `etude agent` does the same for its folder. Your files are only read.

    \b
    Example:
      etude sessions check
    """

    def verb() -> int:
        from etude.cli.sessions.checking import check_command

        return check_command(place, folder, as_json)

    finish(verb)


@sessions.command("consent")
def consent(
    session: Annotated[str, typer.Argument(help="A session: its id, its folder, or `last`.")],
    answer: Annotated[str, typer.Argument(help="yes or no.")],
    place: PlaceOption = None,
) -> None:
    """Say whether a session may be trained on. Without a yes it may not.

    The last word counts, and all of them are kept. `etude agent --consent` says it when a session begins,
    or goes on, but not against what was said here.

    \b
    Examples:
      etude sessions consent last yes
      etude sessions consent 20260102-101500-a1b2c3 no
    """

    def verb() -> int:
        from etude.cli.sessions.consent import consent_command

        return consent_command(session, answer, place)

    finish(verb)
