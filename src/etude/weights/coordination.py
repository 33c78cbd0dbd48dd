"""What publishers and followers of a store tell one another, through small objects in it.

`writers/000003.json` is made by a publisher that takes the store over: the highest number is the only one that may
publish. `followers/NAME.json` says which version a follower reads or holds.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from etude.weights.errors import WeightsError
from etude.weights.objects import Objects

FORGOTTEN_SECONDS = 3600.0
"""A follower that has announced nothing for so long is taken to be gone."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_WRITER = re.compile(r"writers/(\d{6,})\.json")


def claim(objects: Objects) -> int:
    """Take over the right to publish. Return this publisher's number."""
    number = newest_writer(objects) + 1
    while not objects.create(f"writers/{number:06d}.json", b"{}"):
        number += 1
    objects.delete_others("writers", {f"writers/{number:06d}.json"})
    return number


def newest_writer(objects: Objects) -> int:
    """Return the number of the publisher that took over last, 0 if none has."""
    return max((int(match[1]) for path in objects.list("writers") if (match := _WRITER.fullmatch(path))), default=0)


@dataclass(frozen=True, slots=True)
class Follower:
    name: str
    version: int
    silent_seconds: float
    """Seconds between its last announcement and the newest object in the store, by the store's clock."""


def announce(objects: Objects, name: str, version: int) -> None:
    if not _NAME.fullmatch(name):
        raise WeightsError(f"expected a follower's name of letters, digits, '.', '_' and '-', found {name!r}")
    objects.put(f"followers/{name}.json", json.dumps({"version": version}).encode())


def followers(objects: Objects) -> list[Follower]:
    """Return all followers that ever announced a version. Raises WeightsError if an announcement cannot be read."""
    times = objects.times()
    newest, found = max(times.values(), default=None), list[Follower]()
    for path, time in sorted(times.items()):
        if not path.startswith("followers/") or (raw := objects.get(path)) is None or newest is None:
            continue
        try:
            version = int(json.loads(bytes(raw))["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise WeightsError(f"{objects.location}: {path} is no announcement: {error}; delete it") from error
        found.append(Follower(path[10:-5], version, (newest - time).total_seconds()))
    return found
