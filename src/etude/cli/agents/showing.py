"""etude agents follow and show: what an agent is doing, and its result. Both verbs only read files."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from etude.cli.agents.events import EVENTS, read_events, show_event
from etude.cli.agents.listing import age, state_of, summary_of
from etude.cli.show import print_diff
from etude.cli.visible import visible
from etude.cli.wording import count
from etude.harness.background import LOCK, Agent, AgentState, find_agent, is_held, read_agent
from etude.harness.editing.diff import binary_changes, unified_diff
from etude.harness.sessions.record import EDITS
from etude.trace import StopCause

_LOOK_SECONDS = 0.2


def follow_command(sessions: Path, word: str, as_json: bool) -> int:
    place = find_agent(sessions.resolve(), word)
    console = Console()
    offset = 0
    while True:
        # Checked before reading, so that events written just before the agent ends are still read.
        lives = is_held(place / LOCK)
        events, offset = read_events(place / EVENTS, offset)
        for event in events:
            if as_json:
                print(json.dumps(event), flush=True)
            else:
                show_event(console, event)
        if not lives:
            break
        time.sleep(_LOOK_SECONDS)
    agent = read_agent(place)
    if not as_json:
        _say_what_next(agent)
    return 0 if agent.ended.stop in (StopCause.FINISHED, StopCause.REPLIED) else 1


def _say_what_next(agent: Agent) -> None:
    name = agent.order.name or agent.order.id
    if agent.state in (AgentState.STOPPED, AgentState.FAILED, AgentState.INTERRUPTED):
        print(f"{state_of(agent)}: etude agents resume {name}", file=sys.stderr)
    elif files := agent.change().files:
        print(f"{count(files, 'file')} changed: etude agents show {name}", file=sys.stderr)
    else:
        print("nothing was changed", file=sys.stderr)


def show_command(sessions: Path, word: str, as_json: bool) -> int:
    agent = read_agent(find_agent(sessions.resolve(), word))
    before = {path: data for path, (data, _) in agent.changes.items() if data is not None}
    after = {path: data for path, (_, data) in agent.changes.items() if data is not None}
    diff = unified_diff(before, after) + binary_changes(before, after)
    session = agent.session
    decided = [signal for signal in session.signals if signal["what"] in EDITS] if session else []
    if as_json:
        usage = asdict(session.usage) if session else {}
        shown = {**summary_of(agent), "text": agent.ended.text, "usage": usage, "signals": decided, "diff": diff}
        shown["left_out"] = agent.left_out
        print(json.dumps(shown))
        return 0
    console = Console(highlight=False)
    order = agent.order
    name = f" ({order.name})" if order.name else ""
    turns = count(session.turns if session else 0, "turn")
    _line(console, f"{order.id}{name}: {state_of(agent)}, {turns}, begun {age(time.time() - order.begun)} ago", "bold")
    _line(console, f"{order.folder}, {order.model}", "dim")
    for prompt in order.prompts:
        _line(console, f"> {prompt.strip()}", "cyan")
    if agent.ended.error:
        _line(console, agent.ended.error, "red")
    if agent.ended.text.strip():
        _line(console, agent.ended.text.strip(), "")
    for signal in decided:
        _line(console, f"({signal['what'].replace('_', ' ')}: {', '.join(signal.get('files', []))})", "dim")
    for path in agent.left_out:
        _line(console, f"{path} became too large to be read: it is left out", "red")
    print_diff(console, diff)
    return 0


def _line(console: Console, text: str, style: str) -> None:
    console.print(visible(text), style=style, markup=False, soft_wrap=not console.is_terminal)
