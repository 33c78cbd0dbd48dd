"""The process of one background agent: waits for its turn in the queue, works, and records how it ended.

start.py starts the process and passes on the agent's lock, which the process holds until it ends. Invariant: while the
process waits in the queue, it holds no sandbox, no view of the folder and no connection.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from etude.cli.agent import AgentOptions
from etude.cli.agent_setup import Front, Where, about, endpoint_front, open_session
from etude.cli.agents.events import EVENTS, EventLog
from etude.cli.agents.start import read_options
from etude.cli.errors import first_line
from etude.harness import Outcome
from etude.harness.background import Agent, Ended, Queue, last_message, read_agent, sign_lock, write_ended
from etude.harness.sessions import SavedSession, SessionError, SessionRecord, load_session
from etude.harness.sessions.record import BLOBS, LOG
from etude.trace import StopCause

BOXES = "boxes"
_LOOK_SECONDS = 0.25


def main(place: Path, lock: int) -> int:
    os.set_inheritable(lock, False)
    sign_lock(lock)
    queue = Queue(place.parent)
    ended = Ended(stop=StopCause.CANCELLED)
    with EventLog(place / EVENTS) as events:
        try:
            with suppress(asyncio.CancelledError, KeyboardInterrupt):
                ended = asyncio.run(_work(place, queue, events))
        except Exception as error:
            ended = Ended(stop=StopCause.ERROR, error=first_line(error))
            raise
        finally:
            queue.leave(place.name)
            write_ended(place, ended)
            events.ended(ended)
    return 0 if ended.stop in (StopCause.FINISHED, StopCause.REPLIED) else 1


async def _work(place: Path, queue: Queue, events: EventLog) -> Ended:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    # Cancel only once: a second signal must not interrupt the cleanup that the first one started.
    loop.add_signal_handler(signal.SIGTERM, lambda: task.cancelling() or task.cancel())
    agent = read_agent(place)
    waited = False
    while (ahead := queue.before(place.name)) >= agent.order.at_once:
        if not waited:
            events.waits(ahead)
            waited = True
        await asyncio.sleep(_LOOK_SECONDS)
    outcome = await _act(agent, read_options(place), events)
    session = load_session(place)
    if outcome is None:
        # All prompts were answered earlier: the previous process failed only afterwards.
        return Ended(stop=session.stop, text=last_message(session))
    return Ended(stop=outcome.stop, error=outcome.error, text=last_message(session))


async def _act(agent: Agent, options: AgentOptions, events: EventLog) -> Outcome | None:
    if not options.folder.is_dir():
        raise SessionError(f"{options.folder} is not there any more")
    front = endpoint_front(options.endpoint)
    where = Where(options.folder, shell=options.shell, consent=options.consent, boxes=agent.place / BOXES)
    async with AsyncExitStack() as stack:
        policy = front.open_policy(stack)
        saved = _to_go_on(agent)
        record = None if saved else _begin(agent.place, front, where)
        session = await open_session(stack, front, where, policy, saved=saved, observer=events, record=record)
        outcome: Outcome | None = None
        if session.interrupted:
            events.goes_on()
            outcome = await session.resume()
        for prompt in agent.pending:
            if outcome is not None and outcome.failed_by_us:
                break
            events.asked(prompt)
            outcome = await session.run(prompt)
        return outcome


def _to_go_on(agent: Agent) -> SavedSession | None:
    saved = agent.session
    if saved is not None and saved.stop in (StopCause.CANCELLED, StopCause.ERROR, StopCause.WALL_CLOCK):
        # The agent did not end by itself: the request is still unanswered.
        saved.stop = ""
    return saved


def _begin(place: Path, front: Front, where: Where) -> SessionRecord:
    # Left by a process that was killed before the session's first line was complete.
    (place / LOG).unlink(missing_ok=True)
    if (place / BLOBS).exists():
        (place / BLOBS).rmdir()
    return SessionRecord.begin(place, **about(front, where))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
