"""The verbs of `etude agents`: options, help and examples. The code of a verb is imported only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from etude.cli.errors import verb
from etude.cli.options import JsonOption, SessionsOption


class _ListsByItself(TyperGroup):
    """Group that runs `list` if no verb is given, as in `etude agents` or `etude agents --json`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


agents = typer.Typer(
    cls=_ListsByItself,
    help="Background agents (`etude agent -p TEXT --background`): list them, follow them, decide about their "
    "changes.\n\nWithout a verb it lists them. AGENT is an id, an unambiguous beginning of one, or a name.",
    rich_markup_mode=None,
)

AgentArgument = Annotated[str, typer.Argument(help="An id, its beginning, or a name.", metavar="AGENT")]
AgentsArgument = Annotated[list[str], typer.Argument(help="Ids, beginnings of ids, or names.", metavar="AGENT...")]
LEFT = "no longer following; the agent keeps running"


def _sessions(given: Path | None) -> Path:
    from etude.cli.agent_setup import default_sessions

    return given or default_sessions()


@agents.command("list")
@verb()
def list_agents(
    folder: Annotated[Path | None, typer.Option(help="Only agents on this folder.")] = None,
    as_json: JsonOption = False,
    sessions: SessionsOption = None,
) -> int:
    """Show the agents, newest first.

    One line each: state, turns, age, files changed with lines added and removed, and the prompt.

    \b
    States:
      queued (N)    waits at place N of the queue
      running       at work
      done          ended by itself
      out of turns  (or tokens, tool calls, tool time, money, context) a budget is spent
      stopped       by `etude agents stop`; can be resumed
      failed        the endpoint, a box or the disk failed; can be resumed
      interrupted   its process is gone (a kill, a reboot); can be resumed
      applied, partly applied, rejected: what you decided about its change

    \b
    Examples:
      etude agents
      etude agents --folder .
      etude agents list --json | jq -r '.[] | select(.state == "done") | .id'
    """
    from etude.cli.agents.listing import list_command

    return list_command(_sessions(sessions), folder, as_json)


@agents.command()
@verb(when_interrupted=LEFT)
def follow(agent: AgentArgument, as_json: JsonOption = False, sessions: SessionsOption = None) -> int:
    """Show what an agent does as it happens, until it ends.

    The output begins with the agent's first event. Ctrl-C leaves the agent running. The exit code is 0 if the agent
    ended by itself, else 1. With --json, one line per event is printed.

    \b
    Examples:
      etude agents follow 3fa
      etude agents follow 3fa --json | jq -r 'select(.kind == "tool") | .name'
    """
    from etude.cli.agents.showing import follow_command

    return follow_command(_sessions(sessions), agent, as_json)


@agents.command()
@verb()
def show(agent: AgentArgument, as_json: JsonOption = False, sessions: SessionsOption = None) -> int:
    """Show an agent's result: its last message, and its change as a diff.

    \b
    Examples:
      etude agents show 3fa
      etude agents show 3fa --json | jq -r .text
    """
    from etude.cli.agents.showing import show_command

    return show_command(_sessions(sessions), agent, as_json)


@agents.command()
@verb()
def apply(
    agent: AgentArgument,
    files: Annotated[list[str] | None, typer.Option("--file", help="Apply only this file; repeatable.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Also merge files in which you changed other lines meanwhile.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written; write nothing.")] = False,
    as_json: JsonOption = False,
    sessions: SessionsOption = None,
) -> int:
    """Write an agent's change into its folder.

    The change is written completely or not at all. If you and the agent changed different lines of a file meanwhile,
    pass --merge to merge them. If you changed the same lines, nothing is written and the error names the file.

    \b
    Examples:
      etude agents apply 3fa
      etude agents apply 3fa --file src/calc.py
      etude agents apply 3fa --merge --dry-run
    """
    from etude.cli.agents.deciding import apply_command

    place = _sessions(sessions)
    return apply_command(place, agent, files or [], merging=merge, dry_run=dry_run, as_json=as_json)


@agents.command()
@verb()
def reject(agents: AgentsArgument, sessions: SessionsOption = None) -> int:
    """Reject agents' changes. The changes are kept until the agents are removed.

    \b
    Example:
      etude agents reject 3fa
    """
    from etude.cli.agents.deciding import reject_command

    return reject_command(_sessions(sessions), agents)


@agents.command()
@verb(when_interrupted="interrupted: the agents were asked to stop")
def stop(agents: AgentsArgument, sessions: SessionsOption = None) -> int:
    """Stop agents, queued ones too, and wait until they have ended.

    What they did is kept; `etude agents resume` continues one.

    \b
    Examples:
      etude agents stop 3fa
      etude agents stop $(etude agents --json | jq -r '.[] | select(.state == "queued") | .id')
    """
    from etude.cli.agents.deciding import stop_command

    return stop_command(_sessions(sessions), agents)


@agents.command()
@verb()
def resume(
    agent: AgentArgument,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="What to do next.")] = None,
    rebase: Annotated[
        bool,
        typer.Option("--rebase", help="Continue from the folder's current files, if you changed those of the agent."),
    ] = False,
    as_json: JsonOption = False,
    sessions: SessionsOption = None,
) -> int:
    """Continue an agent, in the background again.

    An agent that did not end by itself first continues what it was doing. The agent joins the end of the queue and uses
    the endpoint it was started with; the key is read from the environment again. With --rebase, a file in which you and
    the agent changed different lines is merged. If you both changed the same lines, the agent's change to the file is
    undone in its copy, and the agent is asked to make it again on top of yours.

    \b
    Examples:
      etude agents resume 3fa
      etude agents resume 3fa --rebase
      etude agents resume 3fa -p "now the docs"
    """
    from etude.cli.agents.start import resume_command

    return resume_command(_sessions(sessions), agent, prompt, as_json, rebase=rebase)


@agents.command()
@verb()
def remove(
    agents: AgentsArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also delete changes that were neither applied nor rejected.")
    ] = False,
    sessions: SessionsOption = None,
) -> int:
    """Delete agents and their sessions. Your folder stays as it is.

    \b
    Examples:
      etude agents remove 3fa b01
      etude agents remove $(etude agents --json | jq -r '.[] | select(.state == "applied") | .id')
    """
    from etude.cli.agents.deciding import remove_command

    return remove_command(_sessions(sessions), agents, force)
