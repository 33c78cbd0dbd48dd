"""etude agent --background and etude agents resume: start a process per agent, which outlives the terminal.

Invariant: an agent's lock is taken before agent.json marks its folder as an agent's, and the agent's process inherits
the lock. So no other command ever sees an agent that was started but has no process. Ctrl-C takes effect between two
starts, never within one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pydantic import TypeAdapter, ValidationError

from etude.cli.agent import AgentOptions
from etude.cli.agent_setup import harness_of
from etude.harness import ApplyConflict
from etude.harness.background import (
    Agent,
    AgentState,
    Fit,
    Order,
    Queue,
    Step,
    find_agent,
    new_agent_folder,
    plan_steps,
    read_agent,
    readable_orders,
    take_agent_lock,
    write_order,
)
from etude.harness.background.request import ENDED
from etude.harness.sessions import SessionError
from etude.journal.files import disk_problem, write_atomically

OPTIONS, LOG = "options.json", "log"
_ADAPTER = TypeAdapter(AgentOptions)


def start_command(options: AgentOptions, name: str, tries: int, at_once: int) -> int:
    if not options.prompt:
        raise SessionError("nothing to do: give a prompt with -p")
    if options.resume is not None:
        raise SessionError("--background starts a new agent: to continue one, use `etude agents resume`")
    if options.apply:
        raise SessionError("--apply does not go with --background: review the change first, then `etude agents apply`")
    if options.run is not None:
        raise SessionError("a run folder does not go with --background, which needs an endpoint: leave one of them out")
    if options.rules.here:
        raise SessionError("--here does not go with --background: the agent works on a copy, and you apply its change")
    options.rules.parsed()
    harness_of(options.endpoint)  # raises now if the budgets are invalid
    if not options.folder.is_dir():
        raise SessionError(f"{options.folder} is not a folder")
    options = replace(options, folder=options.folder.resolve(), sessions=options.sessions.resolve())
    names = [f"{name}-{number + 1}" for number in range(tries)] if name and tries > 1 else [name] * tries
    _refuse_taken(options.sessions, names)
    started = []
    for one in names:
        with heeded_afterwards():
            started.append(_start(options, one, at_once))
            if not options.as_json:
                print(started[-1].id, flush=True)
    if options.as_json:
        places = {order.id: find_agent(options.sessions, order.id) for order in started}
        print(json.dumps({"agents": [{"id": id, "session": str(place)} for id, place in places.items()]}))
        return 0
    _tell(options.sessions, started)
    return 0


def resume_command(sessions: Path, word: str, prompt: str | None, as_json: bool, *, rebase: bool = False) -> int:
    sessions = sessions.resolve()
    place = find_agent(sessions, word)
    with heeded_afterwards():
        lock = take_agent_lock(place, "resume")
        try:
            agent = read_agent(place, lock_held=True)
            order = agent.order
            moved = _moved(agent)
            if moved and not rebase:
                raise ApplyConflict(
                    f"changed since {order.id} began: {', '.join(step.path for step in moved)}; --rebase continues "
                    "from the current files, and tells the agent"
                )
            asked = "\n\n".join(part for part in (_told(moved), prompt) if part)
            if asked:
                order = order.model_copy(update={"prompts": (*order.prompts, asked)})
            elif not agent.unfinished:
                raise SessionError(f"{order.id} is {agent.state} and has nothing left to do: give a prompt with -p")
            read_options(place)  # raises here what would otherwise fail in the agent's process
            (place / ENDED).unlink(missing_ok=True)
            write_order(place, order)
            if moved:
                _rebase(agent, moved)
            _spawn(place, lock)
        finally:
            os.close(lock)
    if as_json:
        print(json.dumps({"agents": [{"id": order.id, "session": str(place)}]}))
    else:
        print(order.id)
        _tell(sessions, [order])
    return 0


def _moved(agent: Agent) -> list[Step]:
    """Return the files to which the agent's change cannot simply be written, mostly because somebody else has changed
    them since the agent began."""
    found = plan_steps(agent.order.folder, agent.changes)
    return [step for step in found if step.fit not in (Fit.WRITES, Fit.THERE)]


def _rebase(agent: Agent, moved: list[Step]) -> None:
    assert agent.session is not None
    record = agent.session.resume_record()
    try:
        record.rebased({s.path: (s.found, s.result) if s.fit is Fit.MERGES else None for s in moved})
    finally:
        record.close()


def _told(moved: list[Step]) -> str:
    merged = ", ".join(step.path for step in moved if step.fit is Fit.MERGES)
    lost = ", ".join(step.path for step in moved if step.fit is Fit.CONFLICTS)
    said = []
    if merged:
        said.append(f"Meanwhile others changed {merged}, in other lines than you: both changes are in now.")
    if lost:
        said.append(
            f"Meanwhile others changed {lost} where you did: it is as they made it now, and your change to it is gone. "
            "Read it again, and make your change on top of theirs where it is still wanted."
        )
    return " ".join(said)


def _refuse_taken(sessions: Path, names: list[str]) -> None:
    taken = {order.name for order in readable_orders(sessions).values()} - {""}
    if double := sorted(taken.intersection(names)):
        raise SessionError(f"there is an agent {double[0]!r} already: choose another name, or `etude agents remove` it")


def _start(options: AgentOptions, name: str, at_once: int) -> Order:
    assert options.prompt is not None
    id, place = new_agent_folder(options.sessions)
    order = Order(
        id=id,
        name=name,
        folder=options.folder,
        model=options.endpoint.model,
        prompts=(options.prompt,),
        at_once=at_once,
        begun=time.time(),
    )
    try:
        options.sessions.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.mkdir(mode=0o700)
        lock = take_agent_lock(place, "start")
        try:
            write_atomically(place / OPTIONS, _ADAPTER.dump_json(options, indent=1))
            write_order(place, order)
            _spawn(place, lock)
        finally:
            os.close(lock)
    except OSError as error:
        shutil.rmtree(place, ignore_errors=True)
        raise SessionError(f"cannot start an agent in {place}: {disk_problem(error)}") from error
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return order


def read_options(place: Path) -> AgentOptions:
    try:
        return _ADAPTER.validate_json((place / OPTIONS).read_bytes())
    except (OSError, ValidationError) as error:
        raise SessionError(f"{place / OPTIONS} cannot be read by this version of etude: start another agent") from error


def _spawn(place: Path, lock: int) -> None:
    Queue(place.parent).draw(place.name)
    command = [sys.executable, "-m", "etude.cli.agents.worker", str(place), str(lock)]
    environment = dict(os.environ)
    if path := environment.get("PYTHONPATH"):
        # Made absolute: the process runs in /, so that this folder can be removed or unmounted meanwhile.
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in path.split(os.pathsep))
    with (place / LOG).open("ab") as log:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
            cwd="/",
            env=environment,
        )


@contextmanager
def heeded_afterwards() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM to the end of the block. If one arrived, KeyboardInterrupt is raised there."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    kept = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def _tell(sessions: Path, started: list[Order]) -> None:
    waiting = sum(read_agent(find_agent(sessions, order.id)).state is AgentState.QUEUED for order in started)
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        print(
            f"{waiting} of {len(started)} {verb} in the queue: {started[0].at_once} may work at once (--at-once)",
            file=sys.stderr,
        )
    name = started[0].name or started[0].id
    print(f"etude agents follow {name}" if len(started) == 1 else "etude agents", file=sys.stderr)
