"""Background agents: their queue and locks, their state, and applying their changes to the user's folder.

All state is on disk, in the folders of the agents' sessions.
"""

from etude.harness.background.agent import Agent, Change, State, held, last_words, look, look_at_all, take_agent
from etude.harness.background.applying import Fit, Step, count_lines, preview, steps, write
from etude.harness.background.locks import alone, holder, is_held, sign, signal_holder, take
from etude.harness.background.merge import merge
from etude.harness.background.queue import LOCK, Queue
from etude.harness.background.request import (
    Ended,
    Order,
    agents,
    find,
    is_agent,
    place_for,
    readable,
    write_ended,
    write_order,
)

__all__ = [
    "LOCK",
    "Agent",
    "Change",
    "Ended",
    "Fit",
    "Order",
    "Queue",
    "State",
    "Step",
    "agents",
    "alone",
    "count_lines",
    "find",
    "held",
    "holder",
    "is_agent",
    "is_held",
    "last_words",
    "look",
    "look_at_all",
    "merge",
    "place_for",
    "preview",
    "readable",
    "sign",
    "signal_holder",
    "steps",
    "take",
    "take_agent",
    "write",
    "write_ended",
    "write_order",
]
