"""The verbs apply, reject, stop and remove of `etude agents`.

Invariants: changes that nobody has reviewed are deleted only with --force. An agent's folder is written by one process
at a time: a command that writes it holds the agent's lock.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from etude.cli.agents.worker import BOXES
from etude.cli.visible import visible
from etude.cli.wording import count
from etude.harness.background import (
    LOCK,
    Agent,
    AgentState,
    Ended,
    Fit,
    Queue,
    Step,
    count_lines,
    find_agent,
    is_held,
    lock_agent,
    lock_holder,
    plan_steps,
    preview,
    read_agent,
    signal_holder,
    wait_for_lock,
    write_ended,
    write_steps,
)
from etude.harness.sessions import SavedSession, SessionError
from etude.sandbox import forget_store
from etude.trace import StopCause

_APPLY_SECONDS, _STOP_SECONDS, _LOOK_SECONDS = 60.0, 60.0, 0.05


def apply_command(sessions: Path, word: str, files: list[str], *, merging: bool, dry_run: bool, as_json: bool) -> int:
    sessions = sessions.resolve()
    place = find_agent(sessions, word)
    with lock_agent(place, "apply"):
        agent = read_agent(place, lock_held=True)
        session = _with_changes(agent)
        with wait_for_lock(
            _lock_of(sessions, agent.order.folder), seconds=_APPLY_SECONDS, whom="another `etude agents apply`"
        ):
            planned = plan_steps(agent.order.folder, agent.changes, files)
            if dry_run:
                _show(planned, as_json)
                return 0
            paths = write_steps(agent.order.folder, planned, merging=merging)
        lines = [count_lines(*agent.changes[step.path]) for step in planned]
        added, removed = (sum(counts) for counts in zip(*lines, strict=True)) if lines else (0, 0)
        _signal(session, "edits_accepted", files=paths, added=added, removed=removed)
    merged = [step.path for step in planned if step.fit is Fit.MERGES]
    if as_json:
        print(json.dumps({"applied": paths, "merged": merged}))
        return 0
    if merged:
        # Nobody has seen the merged files yet.
        sys.stdout.write(visible(preview([step for step in planned if step.fit is Fit.MERGES])))
    remarks = {Fit.MERGES: " (merged)", Fit.THERE: " (already had it)"}
    told = [f"{step.path}{remarks.get(step.fit, '')}" for step in planned]
    print(f"applied to {visible(', '.join(told))}", file=sys.stderr)
    return 0


def _show(planned: list[Step], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"steps": [{"path": s.path, "fit": s.fit, "why": s.why} for s in planned]}))
        return
    sys.stdout.write(visible(preview([step for step in planned if step.fit is not Fit.CONFLICTS])))
    for step in planned:
        said = {Fit.MERGES: "would be merged", Fit.CONFLICTS: step.why, Fit.THERE: "has the change already"}
        if step.fit in said:
            print(visible(f"{step.path}: {said[step.fit]}"), file=sys.stderr)


def reject_command(sessions: Path, words: list[str]) -> int:
    for place in _each(sessions, words):
        with lock_agent(place, "reject"):
            agent = read_agent(place, lock_held=True)
            _signal(_with_changes(agent), "edits_rejected", files=sorted(agent.changes))
        print(f"rejected {agent.order.id}: {count(len(agent.changes), 'file')}", file=sys.stderr)
    return 0


def stop_command(sessions: Path, words: list[str]) -> int:
    places = _each(sessions, words)
    for place in places:
        agent = read_agent(place)
        if not agent.state.lives:
            raise SessionError(f"{agent.order.id} is not at work: it is {agent.state}")
    for place in places:
        _ask_to_stop(place)
    for place in places:
        _wait_for_end(place)
        print(f"stopped {read_agent(place).order.id}", file=sys.stderr)
    return 0


def remove_command(sessions: Path, words: list[str], force: bool) -> int:
    places = _each(sessions, words)
    for place in places:
        agent = read_agent(place)
        reviewed = agent.state in (AgentState.APPLIED, AgentState.REJECTED)
        if agent.changes and not agent.state.lives and not reviewed and not force:
            files = count(len(agent.changes), "file")
            raise SessionError(
                f"{agent.order.id} has changes to {files} that you neither applied nor rejected: --force drops them"
            )
    for place in places:
        with lock_agent(place, "remove"):
            forget_store(place / BOXES)
            Queue(place.parent).leave(place.name)
            shutil.rmtree(place)
    return 0


def _each(sessions: Path, words: Iterable[str]) -> list[Path]:
    return list(dict.fromkeys(find_agent(sessions.resolve(), word) for word in words))


def _with_changes(agent: Agent) -> SavedSession:
    if agent.session is None or not agent.changes:
        raise SessionError(f"{agent.order.id} is {agent.state} and has no changes to decide on")
    return agent.session


def _signal(session: SavedSession, what: str, **fields: object) -> None:
    record = session.resume_record()
    try:
        record.signal(what, **fields)
    finally:
        record.close()


def _lock_of(sessions: Path, folder: Path) -> Path:
    return sessions / "applying" / blake2b(str(folder).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _ask_to_stop(place: Path) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while is_held(place / LOCK) and not signal_holder(place / LOCK, signal.SIGTERM):
        if time.monotonic() > deadline:
            raise SessionError(f"the process of {place.name} does not start: see {place / 'log'}")
        time.sleep(_LOOK_SECONDS)


def _wait_for_end(place: Path) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while is_held(place / LOCK):
        if time.monotonic() > deadline:
            raise SessionError(
                f"{place.name} was asked to stop but has not ended within {_STOP_SECONDS:g} s: kill process "
                f"{lock_holder(place / LOCK)}; what it did is kept"
            )
        time.sleep(_LOOK_SECONDS)
    if read_agent(place).state is AgentState.INTERRUPTED:
        # Its process ended before it could record why. It was stopped by the user all the same.
        write_ended(place, Ended(stop=StopCause.CANCELLED))
