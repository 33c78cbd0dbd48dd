"""Reads and writes two files in a background agent's folder: its prompts and settings (`agent.json`), and how its
process ended (`ended.json`).

Invariant: each file is complete or absent. `agent.json` exists before the process starts. A process that ends normally
writes `ended.json`; starting the agent again deletes it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from etude.harness.sessions import SessionError
from etude.journal.files import disk_problem, write_atomically

ORDER, ENDED = "agent.json", "ended.json"
M = TypeVar("M", bound=BaseModel)


class Order(BaseModel):
    """Contents of `agent.json`: the prompts and settings of a background agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    """Six hexadecimal digits. In commands, users may give any prefix that no other agent's id shares."""
    name: str
    folder: Path
    model: str
    prompts: tuple[str, ...]
    """The user's prompts to the agent, in order. Those after the first n are pending, where n is the number of requests
    that the agent's session has received."""
    at_once: int
    """The agent may run as soon as fewer than this many agents are before it in the queue."""
    begun: float


class Ended(BaseModel):
    """Contents of `ended.json`: how a background agent's process ended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stop: str
    """Value of the StopCause with which the agent ended; empty if unknown."""
    error: str = ""
    text: str = ""


def new_agent_folder(sessions: Path) -> tuple[str, Path]:
    """Return a new agent id, and the path of the folder for the agent's session. The folder is not created yet."""
    taken = {path.name.rpartition("-")[2] for path in agent_folders(sessions)}
    while (new := secrets.token_hex(3)) in taken:
        pass
    return new, sessions / f"{time.strftime('%Y%m%d-%H%M%S')}-{new}"


def agent_folders(sessions: Path) -> Iterator[Path]:
    return (path.parent for path in sessions.glob(f"*/{ORDER}"))


def is_agent(place: Path) -> bool:
    return (place / ORDER).is_file()


def readable_orders(sessions: Path) -> dict[Path, Order]:
    """Return the parsed `agent.json` of each agent, by the agent's folder. Unreadable files are skipped."""
    found = {}
    for place in agent_folders(sessions):
        with suppress(SessionError):
            found[place] = read_order(place)
    return found


def find_agent(sessions: Path, word: str) -> Path:
    """Return the folder of the one agent with this name, folder name or id prefix. Raises SessionError if none or
    several match."""
    orders = readable_orders(sessions)
    exact = [place for place, order in orders.items() if word in (order.name, order.id, place.name)]
    found = exact or [place for place, order in orders.items() if word and order.id.startswith(word)]
    if not found:
        alike = sorted(order.name for order in orders.values() if word and order.name.startswith(word))
        hint = f"is it {' or '.join(alike)}?" if alike else "`etude agents` lists them"
        raise SessionError(f"there is no agent {word!r} in {sessions}: {hint}")
    if len(found) > 1:
        names = ", ".join(sorted(orders[place].id for place in found))
        raise SessionError(f"{word!r} may be any of {names}: give more digits of the id")
    return found[0]


def write_order(place: Path, order: Order) -> None:
    _write(place / ORDER, order)


def read_order(place: Path) -> Order:
    return read_model(place / ORDER, Order)


def write_ended(place: Path, ended: Ended) -> None:
    _write(place / ENDED, ended)


def read_ended(place: Path) -> Ended | None:
    return read_model(place / ENDED, Ended) if (place / ENDED).exists() else None


def read_model(path: Path, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SessionError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise SessionError(
            f"{path} is not what this version of etude writes ({error.errors()[0]['msg']}): delete its folder"
        ) from error


def _write(path: Path, model: BaseModel) -> None:
    try:
        write_atomically(path, model.model_dump_json(indent=1).encode())
    except OSError as error:
        raise SessionError(f"cannot write {path}: {disk_problem(error)}") from error
