"""A background command as seen by the process that owns its box. Pid 1 keeps the command's output until it is polled,
and reports when the command ends."""

from __future__ import annotations

from typing import Any

from etude.sandbox.contract import Poll, RequestRefused
from etude.sandbox.inside import wire
from etude.sandbox.served.channel import ANSWER_SECONDS, Channel


class ServedProcess:
    def __init__(self, channel: Channel, id: int) -> None:
        self.id = id
        self._channel = channel
        self._seen = 0
        """Bytes of the output that the caller has received or that were dropped."""
        self._end: wire.Header | None = None
        self._rest = b""
        channel.listen(id, "end", self._on_end)

    def _on_end(self, header: wire.Header, payload: bytes) -> None:
        self._end, self._rest = header, payload

    async def poll(self, *, wait: float = 0.0) -> Poll:
        if self._end is None:
            header = {"op": "poll", "process": self.id, "has": self._seen, "wait": max(0.0, wait)}
            answer, data = await self._channel.request(header, patience=wait + ANSWER_SECONDS)
            if self._end is None:
                if type(answer.get("first")) is not int:
                    raise self._channel.misbehaved("poll")
                return self._take(answer["first"], data, code=None)
        data, self._rest = self._rest, b""
        return self._take(self._end["first"], data, code=self._end["end"], limit=self._end["limit"])

    def _take(self, first: int, data: bytes, *, code: int | None, limit: str = "") -> Poll:
        """Return the bytes of `data` that no other poll has returned. `first` is their offset in the command's whole
        output."""
        new = data[max(0, self._seen - first) :]
        skipped = max(0, first - self._seen)
        self._seen = max(self._seen, first + len(data))
        return Poll(new, skipped, code, limit)

    async def write(self, data: bytes) -> None:
        if await self._ask("feed", data):
            raise RequestRefused(f"process {self.id} has ended; nothing reads what is written to it")

    async def close_stdin(self) -> None:
        await self._ask("close_input")

    async def resize(self, rows: int, columns: int) -> None:
        if not (0 < rows < 1 << 16 and 0 < columns < 1 << 16):
            raise RequestRefused(f"a terminal of {rows} rows and {columns} columns; both go from 1 to 65535")
        await self._ask("resize", rows=rows, columns=columns)

    async def kill(self) -> None:
        """Kill the whole process tree. Return once it has ended."""
        await self._ask("kill")

    async def _ask(self, operation: str, payload: bytes = b"", **more: Any) -> bool:
        if self._end is not None:
            return True
        header = {"op": operation, "process": self.id, **more}
        answer, _ = await self._channel.request(header, payload, patience=ANSWER_SECONDS)
        return bool(answer.get("ended", False))
