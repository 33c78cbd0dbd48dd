"""Who may ask, how much and how often: keys, the size of requests, and how many are in flight."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from etude.serve.refusal import Problem, Refused

ANYBODY = ""
"""Name of the client of a server without keys."""
_RECENT = 64
"""Number of answers by which the rate of the server is estimated."""
_LONGEST_WAIT = 60
_BODY_SECONDS = 60.0
"""Time that a client has to send the body of a request."""


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int = 8 << 20
    in_flight: int = 256
    """Requests that are answered or wait for it; further ones are refused."""
    per_key: int = 256
    """The same of one key."""


class Keys:
    """Names of clients by their keys. In memory there are only the keys' hashes, compared in constant time."""

    def __init__(self, keys: dict[str, str]) -> None:
        """`keys` maps names to keys; empty: anybody may ask."""
        self._names = {hashlib.sha256(key.encode()).digest(): name for name, key in keys.items()}

    @classmethod
    def read(cls, file: Path) -> Keys:
        """Read a file with a key on each line, before which its client's name may stand. Raises ServeError."""
        keys: dict[str, str] = {}
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ServeError(f"cannot read the keys in {file}: {error}") from error
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            name = words[0] if len(words) == 2 else f"line-{number}"
            if len(words) > 2 or len(words[-1]) < 16 or name in keys:
                raise ServeError(f"{file}, line {number}: expected [name] key, with a key of 16 characters or more")
            keys[name] = words[-1]
        if not keys:
            raise ServeError(f"{file} has no keys")
        return cls(keys)

    @property
    def open(self) -> bool:
        return not self._names

    def client(self, request: Request) -> str:
        """Return the name of the client that a request's key belongs to. Raises Refused."""
        if not self._names:
            return ANYBODY
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = request.headers.get("x-api-key") or (bearer if kind.lower() == "bearer" else "")
        digest = hashlib.sha256(key.strip().encode()).digest()
        found = [name for known, name in self._names.items() if hmac.compare_digest(known, digest)]
        if not found:
            raise Refused(Problem.KEY, "the key is missing or wrong: send it as Authorization: Bearer KEY or x-api-key")
        return found[0]


class ServeError(Exception):
    """The server cannot be started as asked; the message says why."""


class Admission:
    """Counts the requests in flight, and refuses those beyond the limits."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._of: Counter[str] = Counter()
        self._ends: deque[float] = deque(maxlen=_RECENT)
        self._idle = asyncio.Event()
        self._idle.set()
        self.ending = False

    @property
    def in_flight(self) -> int:
        return self._of.total()

    def enter(self, client: str) -> None:
        if self.ending:
            raise Refused(Problem.ENDING, "the server is being stopped", retry_after=1)
        if self.in_flight >= self._limits.in_flight:
            raise Refused(
                Problem.BUSY,
                f"{self.in_flight} requests are in flight, no more are taken",
                retry_after=self._wait(),
            )
        if self._of[client] >= self._limits.per_key:
            raise Refused(
                Problem.KEY_BUSY, f"this key has {self._of[client]} requests in flight", retry_after=self._wait()
            )
        self._of[client] += 1
        self._idle.clear()

    def leave(self, client: str) -> None:
        self._of[client] -= 1
        self._ends.append(self._clock())
        if not self.in_flight:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def _wait(self) -> float:
        """Estimate when the next request ends, by how often they ended lately."""
        if len(self._ends) < 2:
            return 1
        return min(_LONGEST_WAIT, max(1, math.ceil((self._clock() - self._ends[0]) / len(self._ends))))


async def read_body(request: Request, limit: int) -> bytes:
    """Return a request's body. Raises Refused beyond the limit, without reading the rest."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise Refused(Problem.TOO_LARGE, f"the request has {declared} bytes, the limit is {limit}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise Refused(Problem.TOO_LARGE, f"the request has more than {limit} bytes, which is the limit")
                parts.append(part)
    except TimeoutError as error:
        raise Refused(Problem.TOO_SLOW, f"the request did not arrive within {_BODY_SECONDS:g} s") from error
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(Problem.INVALID, "compressed requests are not supported", field="content-encoding")
    return b"".join(parts)
