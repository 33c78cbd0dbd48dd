"""The egress proxy of one box. It runs in the event loop of the process that owns the box, answers the box's DNS
queries and serves its connections.

Invariant: a connection is served only if it goes to an address that was handed out for a name that the policy allows.
The number of simultaneous connections is limited. Connections beyond the limit or to other addresses are closed and
logged. After an unexpected internal error, the proxy closes, so that nothing passes unchecked.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from etude.sandbox.egress.authority import Authority, NamedConnection
from etude.sandbox.egress.connection import IDLE_SECONDS, Connection
from etude.sandbox.egress.http_body import cut
from etude.sandbox.egress.http_head import MAX_HEAD
from etude.sandbox.egress.log import BoxLog
from etude.sandbox.egress.name_server import NameServer
from etude.sandbox.egress.policy import Policy
from etude.sandbox.egress.upstream import Upstream

MOST_CONNECTIONS = 128
"""Maximum number of simultaneous connections of one box."""
_HANDSHAKE_SECONDS, _QUERY_SECONDS = 10.0, 5.0
_BATCH = 32
_DESCRIPTORS = 1 << 16
_TLS_HANDSHAKE = b"\x16"
_IP_PKTINFO, _IPV6_FREEBIND = 8, 78  # Python has no names for these.
_PACKET_INFO = socket.CMSG_SPACE(20)
_ABORT_ON_CLOSE = struct.pack("ii", 1, 0)


class ConnectionLimit:
    """Limits the simultaneous connections of all boxes of a backend: they may use a quarter of the process's
    descriptors. Boxes hold descriptors too (a hundred use up the usual 1024), so the constructor raises the process's
    limit."""

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = max(soft, min(hard, _DESCRIPTORS))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken, hard))
        self.maximum = taken // 8
        """Maximum number of open connections. Each takes two descriptors, so together they use a quarter of them."""
        self.count = 0


class Proxy:
    def __init__(
        self,
        sockets: list[socket.socket],
        policy: Policy,
        authority: Authority,
        upstream: Upstream,
        log: BoxLog,
        connection_limit: ConnectionLimit,
    ) -> None:
        """Start the proxy on `sockets`, the listening sockets that inside/network.py made in the box's network: DNS
        over UDP first, then DNS over TCP, then one for each allowed port. They are closed with the proxy."""
        self._sockets, self._policy, self._authority = sockets, policy, authority
        self._upstream, self._log = upstream, log
        ipv6 = sockets[0].family == socket.AF_INET6
        self._connection_limit, self._names = connection_limit, NameServer(policy, ipv6=ipv6)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        for listener in sockets:
            listener.setblocking(False)
        dns_socket, tcp_dns_socket, *listeners = sockets
        if ipv6:
            dns_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            dns_socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        else:
            dns_socket.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        self._loop.add_reader(dns_socket, self._answer_queries, dns_socket)
        self._listen(tcp_dns_socket, self._answer_tcp_queries)
        for listener in listeners:
            self._listen(listener, self._serve)

    def close(self) -> None:
        """Close all connections. Safe to call twice, and after the event loop has ended."""
        if self._closed:
            return
        self._closed = True
        for listener in self._sockets:
            if not self._loop.is_closed():
                self._loop.remove_reader(listener)
            listener.close()
        if not self._loop.is_closed():
            for task in self._tasks:
                task.cancel()
        with suppress(OSError):  # This only writes a count, and a full disk may be the reason for closing.
            self._log.close()

    # -- connections

    def _listen(self, listener: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
        if not self._closed:
            self._loop.add_reader(listener, self._accept, listener, serve)

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
        """Accept the waiting connections, and start a task that runs `serve` on each, up to the connection limits."""
        for _ in range(_BATCH):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:  # The owner has no descriptor left. The connections wait in the kernel's queue.
                self._log.refused(f"a connection could not be taken: {error.strerror}")
                self._loop.remove_reader(listener)
                self._loop.call_later(1, self._listen, listener, serve)
                return
            connection.setblocking(False)
            if len(self._tasks) >= MOST_CONNECTIONS or self._connection_limit.count >= self._connection_limit.maximum:
                own = len(self._tasks) >= MOST_CONNECTIONS
                who, most = ("a box", MOST_CONNECTIONS) if own else ("all boxes", self._connection_limit.maximum)
                address, port = _destination(connection)
                name = self._names.name_of(address) or address
                self._log.refused(f"more than {most} connections of {who} at once", host=name, port=port)
                _reset(connection)
                continue
            task = self._loop.create_task(serve(connection))
            self._tasks.add(task)
            self._connection_limit.count += 1
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Forget a task that served a connection and has ended. If the task raised an exception, close the proxy."""
        self._tasks.discard(task)
        self._connection_limit.count -= 1
        if not task.cancelled() and (error := task.exception()):
            # Our own error, or the log cannot be written: from now on, nothing may pass.
            self.close()
            context = {"message": "the egress proxy of a box is closed", "exception": error, "task": task}
            self._loop.call_exception_handler(context)

    async def _serve(self, connection: socket.socket) -> None:
        """Serve a connection if the policy allows its name and port; otherwise log it and reset it."""
        address, port = _destination(connection)
        name = self._names.name_of(address)
        try:
            if name is None:
                self._log.refused("no name was given for this address", host=address, port=port)
            elif not self._policy.allows(name, port):
                self._log.refused("the policy does not name this port", host=name, port=port)
            else:
                await self._serve_name(connection, name, port)
        finally:
            _reset(connection)

    async def _serve_name(self, connection: socket.socket, name: str, port: int) -> None:
        """Serve a connection to an allowed name. Its first byte, not its port, shows whether it is TLS."""
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
            asked.server_name if isinstance(asked, NamedConnection) else None,
            self._policy,
            self._upstream,
            self._log,
        ).serve()

    async def _readable(self, connection: socket.socket) -> None:
        """Wait until the box has sent something on the connection."""
        ready = asyncio.Event()
        self._loop.add_reader(connection, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(connection)

    # -- names

    def _answer_queries(self, dns_socket: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                data, towards, _, sender = dns_socket.recvmsg(4096, _PACKET_INFO)
            except OSError:
                return
            answer = self._look_up(data)
            if answer:
                # Sent from the address that the query went to, since resolvers accept no response from another.
                with suppress(OSError):
                    dns_socket.sendmsg([answer], towards, 0, sender)

    async def _answer_tcp_queries(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            while True:
                async with asyncio.timeout(_QUERY_SECONDS):
                    length = int.from_bytes(await reader.readexactly(2))
                    answer = self._look_up(await reader.readexactly(length))
                    writer.write(len(answer).to_bytes(2) + answer)
                    await writer.drain()
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            cut(writer)

    def _look_up(self, data: bytes) -> bytes:
        """Return the response to a DNS query, and log the name if it is refused."""
        answer, name, why = self._names.answer(data)
        if why:
            self._log.refused_name(name, why)
        return answer


def _destination(connection: socket.socket) -> tuple[str, int]:
    """Return the address and port that the box connected to, IPv4 in its own form (not ::ffff:...)."""
    address, port, *_ = connection.getsockname()
    return address.removeprefix("::ffff:"), port


def _reset(connection: socket.socket) -> None:
    """Close a connection with a TCP reset, so that the program in the box notices at once."""
    if connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_ON_CLOSE)
        connection.close()
