"""Finds the subordinate ids of an ordinary user, as /etc/subuid and /etc/subgid grant them.

Invariant: every range that is returned has been mapped once as a trial. An entry in these files does not prove that the
range can be mapped: set-uid programs map it, and a host may forbid these programs in many ways.
"""

from __future__ import annotations

import functools
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.images.ids import IdRange
from etude.sandbox.inside import subordinate
from etude.sandbox.inside.users import MAX_ID, USERS
from etude.sandbox.light_python import light_command

FEWEST = max(USERS.values()) + 1
"""Number of ids that a box needs at least, since the users in USERS exist in every box."""
FILES = ("etc/subuid", "etc/subgid")
_TRY_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class MissingSubids:
    what: str
    """"range" (no suitable one is granted), "program" (newuidmap or newgidmap), or the error message of a trial
    mapping."""


@dataclass(frozen=True, slots=True)
class Row:
    owner: str
    first: int
    count: int


def read_rows(text: str) -> list[Row]:
    """Parse /etc/subuid or /etc/subgid. Malformed lines are skipped."""
    rows = []
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) == 3 and fields[0] and all(field.isascii() and field.isdecimal() for field in fields[1:]):
            rows.append(Row(fields[0], int(fields[1]), int(fields[2])))
    return rows


def longest(rows: list[Row], owners: set[str]) -> Row | None:
    """Return the longest range of these owners, the first of equally long ones; None if they have none."""
    return max((row for row in rows if row.owner in owners), key=lambda row: row.count, default=None)


def find_subordinate_ids(top: Path = Path("/")) -> IdRange | MissingSubids:
    if not all(map(subordinate.find_program, subordinate.PROGRAMS)):
        return MissingSubids("program")
    found = [longest(_rows_in(top / name), _own_names()) for name in FILES]
    users, groups = found
    if users is None or groups is None or min(users.count, groups.count) < FEWEST:
        return MissingSubids("range")
    count = min(users.count, groups.count, MAX_ID + 1)
    refusal = _try(users.first, groups.first, count)
    return MissingSubids(refusal) if refusal else IdRange(subordinate.FIRST, count, (users.first, groups.first))


def next_free(top: Path = Path("/")) -> int:
    """Return the first id above all ranges in /etc/subuid and /etc/subgid, where a new range can be granted."""
    return max([100_000, *(row.first + row.count for name in FILES for row in _rows_in(top / name))])


def _rows_in(path: Path) -> list[Row]:
    try:
        return read_rows(path.read_text(errors="replace"))
    except OSError:
        return []


def _own_names() -> set[str]:
    """Return the names under which /etc/subuid and /etc/subgid may list the caller: user id and user name."""
    uid = os.getuid()
    try:
        return {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:
        return {str(uid)}


@functools.cache
def _try(users: int, groups: int, count: int) -> str:
    """Map the ids once, in a subprocess. Return the error message, or "" on success."""
    command = light_command("etude.sandbox.inside.subordinate", "enter", users, groups, count)
    try:
        subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TRY_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        return f"no answer in {_TRY_SECONDS:.0f} s"
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip().partition("\n")[0] or f"code {error.returncode}"
    return ""
