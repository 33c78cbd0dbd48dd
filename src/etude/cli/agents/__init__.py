"""etude agents: the verbs, their options and examples. What they do is in a file each, imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from etude.cli.errors import finish
from etude.cli.options import SessionsOption


class _ListsByItself(TyperGroup):
    """`etude agents` alone, or with options, is `etude agents list`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


agents = typer.Typer(
    cls=_ListsByItself,
    help="Agents in the background (`etude agent -p TEXT --background`): list them, follow them, decide on their "
    "changes.\n\nAlone it lists them. An agent is named by its id, as much of it as no other has, or by its name.",
    rich_markup_mode=None,
)

AgentArgument = Annotated[str, typer.Argument(help="An id, the beginning of one, or a name.", metavar="AGENT")]
AgentsArgument = Annotated[list[str], typer.Argument(help="Ids, beginnings of them, or names.", metavar="AGENT...")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LEFT = "left it running"


def _sessions(given: Path | None) -> Path:
    from etude.cli.agent_setup import default_sessions

    return given or default_sessions()


@agents.command("list")
def list_agents(
    folder: Annotated[Path | None, typer.Option(help="Only agents on this folder.")] = None,
    as_json: JsonOption = False,
    sessions: SessionsOption = None,
) -> None:
    """Show the agents, the newest first.

    A line each: state, turns, age, files changed with lines added and removed, and what was asked.

    \b
    States:
      queued (N)    waits, N-th in the queue
      running       at work
      done          came to an end of its own
      out of turns  or tokens, tool calls, tool time, money, context
      stopped       by `etude agents stop`: resume goes on
      failed        the endpoint, a box or the disk: resume goes on
      interrupted   its process is gone (a kill, a reboot): resume goes on
      applied, partly applied, rejected

    \b
    Examples:
      etude agents
      etude agents --folder .
      etude agents list --json | jq -r '.[] | select(.state == "done") | .id'
    """

    def verb() -> int:
        from etude.cli.agents.listing import list_command

        return list_command(_sessions(sessions), folder, as_json)

    finish(verb)


@agents.command()
def follow(agent: AgentArgument, as_json: JsonOption = False, sessions: SessionsOption = None) -> None:
    """Show what an agent did and does, until its end.

    Ctrl-C leaves it running. The exit code is 0 if it came to an end of its own, 1 if not. With --json, a line for
    each thing that happens.

    \b
    Examples:
      etude agents follow 3fa
      etude agents follow 3fa --json | jq -r 'select(.kind == "tool") | .name'
    """

    def verb() -> int:
        from etude.cli.agents.showing import follow_command

        return follow_command(_sessions(sessions), agent, as_json)

    finish(verb, when_interrupted=LEFT)


@agents.command()
def show(agent: AgentArgument, as_json: JsonOption = False, sessions: SessionsOption = None) -> None:
    """Show what came of an agent: last words, and a diff.

    \b
    Examples:
      etude agents show 3fa
      etude agents show 3fa --json | jq -r .text
    """

    def verb() -> int:
        from etude.cli.agents.showing import show_command

        return show_command(_sessions(sessions), agent, as_json)

    finish(verb)


@agents.command()
def apply(
    agent: AgentArgument,
    files: Annotated[list[str] | None, typer.Option("--file", help="Only this file; may be given again.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Also where you changed other lines of the same file meanwhile.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written; write nothing.")] = False,
    as_json: JsonOption = False,
    sessions: SessionsOption = None,
) -> None:
    """Write an agent's change into its folder.

    All of it, or nothing. The folder may have moved on. Files that only the agent changed are written. One that
    changed in other lines is written with --merge alone. If one changed in the same lines, nothing is written, and
    it is named.

    \b
    Examples:
      etude agents apply 3fa
      etude agents apply 3fa --file src/calc.py
      etude agents apply 3fa --merge --dry-run
    """

    def verb() -> int:
        from etude.cli.agents.deciding import apply_command

        place = _sessions(sessions)
        return apply_command(place, agent, files or [], merging=merge, dry_run=dry_run, as_json=as_json)

    finish(verb)


@agents.command()
def reject(agents: AgentsArgument, sessions: SessionsOption = None) -> None:
    """Say that you do not want a change. It is kept until the agent is removed.

    \b
    Example:
      etude agents reject 3fa
    """

    def verb() -> int:
        from etude.cli.agents.deciding import reject_command

        return reject_command(_sessions(sessions), agents)

    finish(verb)


@agents.command()
def stop(agents: AgentsArgument, sessions: SessionsOption = None) -> None:
    """Stop agents, queued ones too, and wait for their end.

    What they did is kept, and resume goes on.

    \b
    Examples:
      etude agents stop 3fa
      etude agents stop $(etude agents --json | jq -r '.[] | select(.state == "queued") | .id')
    """

    def verb() -> int:
        from etude.cli.agents.deciding import stop_command

        return stop_command(_sessions(sessions), agents)

    finish(verb, when_interrupted="interrupted: they were asked to stop")


@agents.command()
def resume(
    agent: AgentArgument,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="What to do next.")] = None,
    rebase: Annotated[
        bool, typer.Option("--rebase", help="From the folder as it is now, where the agent's files moved on.")
    ] = False,
    as_json: JsonOption = False,
    sessions: SessionsOption = None,
) -> None:
    """Go on with an agent, in the background again.

    First with what it was doing, if it came to no end of its own. It takes its place at the end of the queue. The
    endpoint is the one it was started with; its key is read anew. With --rebase, changes to the same lines of a
    file are undone in the agent's copy, and it is asked to make them again on top of yours; those to other lines
    are merged.

    \b
    Examples:
      etude agents resume 3fa
      etude agents resume 3fa --rebase
      etude agents resume 3fa -p "now the docs"
    """

    def verb() -> int:
        from etude.cli.agents.start import resume_command

        return resume_command(_sessions(sessions), agent, prompt, as_json, rebase=rebase)

    finish(verb)


@agents.command()
def remove(
    agents: AgentsArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also changes that were neither applied nor rejected.")
    ] = False,
    sessions: SessionsOption = None,
) -> None:
    """Delete agents with their sessions. Your folder stays as it is.

    \b
    Examples:
      etude agents remove 3fa b01
      etude agents remove $(etude agents --json | jq -r '.[] | select(.state == "applied") | .id')
    """

    def verb() -> int:
        from etude.cli.agents.deciding import remove_command

        return remove_command(_sessions(sessions), agents, force)

    finish(verb)
