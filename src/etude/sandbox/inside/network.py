"""The network of a box: a loopback of its own and, where a policy lets it out, one cable to a gate that only listens.

A box with egress has a second, otherwise empty network namespace beside it, joined by a veth pair. There every IPv4
address is local (AnyIP), so a connection to any address ends at one of a few listening sockets, which still tell what
address it was for. The sockets go to the owner's process; they alone keep the gate alive. Nothing is forwarded: both
namespaces lead nowhere else, and pid 1 loses its rights over them before the box's first command.

    box  eth0 192.168.1.20/24, default route ──veth── gate  192.168.1.1, `local 0.0.0.0/0`, listeners

Nothing listens in the box's own namespace, so its ports and its loopback are all its own.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from etude.sandbox.inside import kernel

ADDRESS, GATEWAY, PREFIX = "192.168.1.20", "192.168.1.1", 24
NAMES_PORT = 53
_BACKLOG = 128

_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 20, 24
_ACKNOWLEDGED_CREATE = 0x0001 | 0x0004 | 0x0400
_NAME, _LINK_INFO, _NAMESPACE = 3, 18, 28
_KIND, _DATA, _PEER = 1, 2, 1
_TABLE_MAIN, _TABLE_LOCAL = 254, 255
_BY_BOOT, _GLOBAL, _LINK = 3, 0, 253
_UNICAST, _LOCAL = 1, 2


def raise_device(name: str) -> None:
    set_flags, up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, set_flags, struct.pack("16sh14x", name.encode(), up_and_running))


def open_gate(box: int, owner: int, ports: list[int]) -> None:
    """For a box's network namespace over which the caller has all rights; the caller is in its own again after it.

    Sends the gate's sockets over the unix socket `owner`: names over UDP, names over TCP, then one for each port."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    listeners: list[socket.socket] = []
    try:
        kernel.unshare(kernel.CLONE_NEWNET, "network gate")
        _furnish_gate(box)
        listeners.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        listeners[0].bind(("", NAMES_PORT))
        listeners += [socket.create_server(("", port), backlog=_BACKLOG) for port in (NAMES_PORT, *ports)]
        kernel.enter_network(box)
        _furnish_box()
        with socket.socket(fileno=os.dup(owner)) as line:
            socket.send_fds(line, [b"gate"], [listener.fileno() for listener in listeners])
    finally:
        for listener in listeners:
            listener.close()
        kernel.enter_network(home)
        os.close(home)


def _furnish_gate(box: int) -> None:
    with _Netlink() as netlink:
        netlink.add_cable("gate0", "eth0", box)
        netlink.add_address("gate0", GATEWAY)
        for device in ("lo", "gate0"):
            raise_device(device)
        # Both in the kernel's table of local addresses, where the longer prefix wins: all is local but the box itself.
        netlink.add_route(_LOCAL, "lo", "0.0.0.0", 0, table=_TABLE_LOCAL)
        netlink.add_route(_UNICAST, "gate0", ADDRESS, 32, table=_TABLE_LOCAL)


def _furnish_box() -> None:
    with _Netlink() as netlink:
        netlink.add_address("eth0", ADDRESS)
        raise_device("eth0")
        netlink.add_route(_UNICAST, "eth0", "0.0.0.0", 0, table=_TABLE_MAIN, gateway=GATEWAY)


class _Netlink:
    """Requests to the kernel about the network namespace in which it was made; a refusal is a StepFailed."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)

    def __enter__(self) -> _Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def add_cable(self, here: str, there: str, namespace: int) -> None:
        link = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
        peer = link + _attribute(_NAME, there.encode() + b"\0") + _attribute(_NAMESPACE, struct.pack("=I", namespace))
        kind = _attribute(_KIND, b"veth") + _attribute(_DATA, _attribute(_PEER, peer))
        body = link + _attribute(_NAME, here.encode() + b"\0") + _attribute(_LINK_INFO, kind)
        self._ask(_NEW_LINK, body, "veth")

    def add_address(self, device: str, address: str) -> None:
        packed = socket.inet_aton(address)
        body = struct.pack("=BBBBI", socket.AF_INET, PREFIX, 0, _GLOBAL, socket.if_nametoindex(device))
        self._ask(_NEW_ADDRESS, body + _attribute(1, packed) + _attribute(2, packed), "network gate")

    def add_route(self, kind: int, device: str, to: str, bits: int, *, table: int, gateway: str = "") -> None:
        scope = {_LOCAL: 254, _UNICAST: _GLOBAL if gateway else _LINK}[kind]
        body = struct.pack("=BBBBBBBBI", socket.AF_INET, bits, 0, 0, table, _BY_BOOT, scope, kind, 0)
        if bits:
            body += _attribute(1, socket.inet_aton(to))
        body += _attribute(4, struct.pack("=I", socket.if_nametoindex(device)))
        if gateway:
            body += _attribute(5, socket.inet_aton(gateway))
        self._ask(_NEW_ROUTE, body, "network gate")

    def _ask(self, kind: int, body: bytes, step: str) -> None:
        self._socket.send(struct.pack("=IHHII", 16 + len(body), kind, _ACKNOWLEDGED_CREATE, 1, 0) + body)
        answer = self._socket.recv(1 << 16)
        number = -struct.unpack_from("=i", answer, 16)[0]
        if number:
            raise kernel.StepFailed(step, number)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
