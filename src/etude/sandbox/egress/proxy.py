"""The proxy of one box: answers its DNS queries and takes its connections, in the owner's event loop.

Invariant: a connection is served only if it goes to an address that was handed out for a name of the policy. The number
of simultaneous connections is limited; connections beyond it or to other addresses are closed and logged. An error of
our own shuts the way out.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from etude.sandbox.egress.authority import AskedObject, Authority
from etude.sandbox.egress.body import cut
from etude.sandbox.egress.connection import IDLE_SECONDS, Connection
from etude.sandbox.egress.head import MAX_HEAD
from etude.sandbox.egress.log import BoxLog
from etude.sandbox.egress.names import Names
from etude.sandbox.egress.policy import Policy
from etude.sandbox.egress.upstream import Upstream

MOST_CONNECTIONS = 128
"""Most simultaneous connections of one box."""
_HANDSHAKE_SECONDS, _QUESTION_SECONDS = 10.0, 5.0
_AT_A_TIME = 32
_DESCRIPTORS = 1 << 16
_TLS_HANDSHAKE = b"\x16"
_IP_PKTINFO, _IPV6_FREEBIND = 8, 78  # Python has no names for these.
_PACKET_INFO = socket.CMSG_SPACE(20)
_ABORT_ON_CLOSE = struct.pack("ii", 1, 0)


class Crowd:
    """The connections of all boxes of a backend. They share the descriptors of its process, two for each connection,
    and must leave most of them to it.

    Boxes also hold descriptors, and a hundred boxes use up the 1024 that most hosts start with, so the process raises
    its limit."""

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = max(soft, min(hard, _DESCRIPTORS))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken, hard))
        self.most = taken // 8
        self.count = 0


class Proxy:
    def __init__(
        self,
        gate: list[socket.socket],
        policy: Policy,
        authority: Authority,
        upstream: Upstream,
        log: BoxLog,
        crowd: Crowd,
    ) -> None:
        """`gate` holds the sockets made by inside/network.py, DNS over UDP and TCP first. They are closed with the
        proxy."""
        self._gate, self._policy, self._authority, self._upstream, self._log = gate, policy, authority, upstream, log
        ipv6 = gate[0].family == socket.AF_INET6
        self._crowd, self._names = crowd, Names(policy, ipv6=ipv6)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        for listener in gate:
            listener.setblocking(False)
        questions, questions_by_tcp, *doors = gate
        if ipv6:
            questions.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            questions.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        else:
            questions.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        self._loop.add_reader(questions, self._answer, questions)
        self._listen(questions_by_tcp, self._answer_all)
        for door in doors:
            self._listen(door, self._serve)

    def close(self) -> None:
        """Cuts all connections. Safe to call twice, and after the event loop has ended."""
        if self._closed:
            return
        self._closed = True
        for listener in self._gate:
            if not self._loop.is_closed():
                self._loop.remove_reader(listener)
            listener.close()
        if not self._loop.is_closed():
            for task in self._tasks:
                task.cancel()
        with suppress(OSError):  # It only writes a count, and a full disk may be why we are closing.
            self._log.close()

    # -- connections

    def _listen(self, listener: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
        if not self._closed:
            self._loop.add_reader(listener, self._accept, listener, serve)

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
        for _ in range(_AT_A_TIME):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:  # The owner's descriptors are used up; the rest waits in the kernel's queue.
                self._log.refused(f"a connection could not be taken: {error.strerror}")
                self._loop.remove_reader(listener)
                self._loop.call_later(1, self._listen, listener, serve)
                return
            connection.setblocking(False)
            if len(self._tasks) >= MOST_CONNECTIONS or self._crowd.count >= self._crowd.most:
                own = len(self._tasks) >= MOST_CONNECTIONS
                who, most = ("a box", MOST_CONNECTIONS) if own else ("all boxes", self._crowd.most)
                address, port = _goal(connection)
                name = self._names.name_of(address) or address
                self._log.refused(f"more than {most} connections of {who} at once", host=name, port=port)
                _cut(connection)
                continue
            task = self._loop.create_task(serve(connection))
            self._tasks.add(task)
            self._crowd.count += 1
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._crowd.count -= 1
        if not task.cancelled() and (error := task.exception()):
            # Our own error, or a log that cannot be written: nothing passes any more.
            self.close()
            told = {"message": "the way out of a box is shut", "exception": error, "task": task}
            self._loop.call_exception_handler(told)

    async def _serve(self, connection: socket.socket) -> None:
        address, port = _goal(connection)
        name = self._names.name_of(address)
        try:
            if name is None:
                self._log.refused("no name was given for this address", host=address, port=port)
            elif not self._policy.allows(name, port):
                self._log.refused("the policy does not name this port", host=name, port=port)
            else:
                await self._serve_name(connection, name, port)
        finally:
            _cut(connection)

    async def _serve_name(self, connection: socket.socket, name: str, port: int) -> None:
        """Serves a connection to an allowed name. The first byte tells TLS from plain HTTP, whatever the port."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._readable(connection)
            first = connection.recv(1, socket.MSG_PEEK)
        except (OSError, TimeoutError):
            return
        tls = first == _TLS_HANDSHAKE
        reader = asyncio.StreamReader(limit=MAX_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._authority.context_for(name) if tls else None,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if tls else None,
                ssl_shutdown_timeout=1 if tls else None,
            )
        except OSError as error:
            self._log.refused(f"the TLS handshake failed: {error}", host=name, port=port)
            return
        asked = transport.get_extra_info("ssl_object")
        await Connection(
            reader,
            asyncio.StreamWriter(transport, protocol, reader, self._loop),
            name,
            port,
            tls,
            asked.asked if isinstance(asked, AskedObject) else None,
            self._policy,
            self._upstream,
            self._log,
        ).serve()

    async def _readable(self, connection: socket.socket) -> None:
        ready = asyncio.Event()
        self._loop.add_reader(connection, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(connection)

    # -- names

    def _answer(self, questions: socket.socket) -> None:
        for _ in range(_AT_A_TIME):
            try:
                data, towards, _, sender = questions.recvmsg(4096, _PACKET_INFO)
            except OSError:
                return
            answer = self._look_up(data)
            if answer:
                # From the address that was asked, since resolvers accept no answer from another.
                with suppress(OSError):
                    questions.sendmsg([answer], towards, 0, sender)

    async def _answer_all(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            while True:
                async with asyncio.timeout(_QUESTION_SECONDS):
                    length = int.from_bytes(await reader.readexactly(2))
                    answer = self._look_up(await reader.readexactly(length))
                    writer.write(len(answer).to_bytes(2) + answer)
                    await writer.drain()
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            cut(writer)

    def _look_up(self, data: bytes) -> bytes:
        answer, name, why = self._names.answer(data)
        if why:
            self._log.refused_name(name, why)
        return answer


def _goal(connection: socket.socket) -> tuple[str, int]:
    """The address and port that the box connected to. Dual-stack sockets show IPv4 addresses in IPv6 form."""
    address, port, *_ = connection.getsockname()
    return address.removeprefix("::ffff:"), port


def _cut(connection: socket.socket) -> None:
    """Closes with a reset, so that the box notices at once."""
    if connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_ON_CLOSE)
        connection.close()
