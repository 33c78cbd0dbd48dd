"""Background agents: their queue, locks and states, and how their changes are applied to the user's folder.

All state is stored on disk, in the session folders of the agents.
"""

from etude.harness.background.agent import (
    Agent,
    AgentState,
    Change,
    last_message,
    lock_agent,
    read_agent,
    read_all_agents,
    take_agent_lock,
)
from etude.harness.background.applying import Fit, Step, count_lines, plan_steps, preview, write_steps
from etude.harness.background.locks import is_held, lock_holder, sign_lock, signal_holder, take_lock, wait_for_lock
from etude.harness.background.merge import merge
from etude.harness.background.queue import LOCK, Queue
from etude.harness.background.request import (
    Ended,
    Order,
    agent_folders,
    find_agent,
    is_agent,
    new_agent_folder,
    readable_orders,
    write_ended,
    write_order,
)

__all__ = [
    "LOCK",
    "Agent",
    "AgentState",
    "Change",
    "Ended",
    "Fit",
    "Order",
    "Queue",
    "Step",
    "agent_folders",
    "count_lines",
    "find_agent",
    "is_agent",
    "is_held",
    "last_message",
    "lock_agent",
    "lock_holder",
    "merge",
    "new_agent_folder",
    "plan_steps",
    "preview",
    "read_agent",
    "read_all_agents",
    "readable_orders",
    "sign_lock",
    "signal_holder",
    "take_agent_lock",
    "take_lock",
    "wait_for_lock",
    "write_ended",
    "write_order",
    "write_steps",
]
