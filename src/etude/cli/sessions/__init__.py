"""The verbs of `etude sessions`: options, help and examples. The code of a verb is imported only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import verb
from etude.cli.options import JsonOption, SessionsOption, group

sessions = group("Your sessions with agents: list them, consent to training, see what is left of accepted edits.")

FolderOption = Annotated[Path | None, typer.Option(help="Only sessions that worked on this folder.")]


@sessions.command("list")
@verb()
def list_sessions(folder: FolderOption = None, as_json: JsonOption = False, sessions: SessionsOption = None) -> int:
    """List sessions, newest first: what was asked, which model, how it ended.

    The exit code is 1 if a session cannot be read.

    \b
    Examples:
      etude sessions list
      etude sessions list --folder . --json
    """
    from etude.cli.sessions.commands import list_command

    return list_command(sessions, folder, as_json)


@sessions.command("check")
@verb()
def check(folder: FolderOption = None, as_json: JsonOption = False, sessions: SessionsOption = None) -> int:
    """Count how many lines of the edits that you accepted are still there.

    A count is due a minute, ten minutes, an hour, a day and a week after each edit. Due counts are made now and written
    to the session as signals. `etude agent` and `etude chat` do the same for their folder. Your files are only read.

    \b
    Example:
      etude sessions check
    """
    from etude.cli.sessions.commands import check_command

    return check_command(sessions, folder, as_json)


@sessions.command("consent")
@verb()
def consent(
    session: Annotated[str, typer.Argument(help="A session: its id, its folder, or `last`.")],
    answer: Annotated[str, typer.Argument(help="yes or no.")],
    sessions: SessionsOption = None,
) -> int:
    """Say whether a session may be trained on. Without a yes it may not.

    The latest answer counts; all are kept. `etude agent --consent` consents when a session begins or is resumed, unless
    you have answered here.

    \b
    Examples:
      etude sessions consent last yes
      etude sessions consent 20260102-101500-a1b2c3 no
    """
    from etude.cli.sessions.commands import consent_command

    return consent_command(session, answer, sessions)
