"""The network of a box: its own loopback and, if a policy allows egress, one veth pair to a gate. The gate is a second,
otherwise empty network namespace, in which sockets of the owner process accept the box's connections.

In the gate every address is local (AnyIP), so a connection to any address ends at one of a few listening sockets, which
still report the address that the box wanted. The sockets are passed to the owner's process, and only they keep the gate
alive. Nothing is forwarded: neither namespace has another link, and pid 1 loses its rights over both namespaces before
the box's first command.

    box  eth0 192.168.1.20/32, default route ──veth── gate  192.168.1.1, `local 0.0.0.0/0`, listeners

The same holds for IPv6 if the kernel has it. Nothing listens in the box's own namespace, so all of its ports and its
loopback are free for the box.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from etude.sandbox.inside import kernel


class LinkAddresses:
    """The addresses, in one family, of the veth pair that links a box to its gate."""

    __slots__ = ("any_address", "box", "family", "gate", "prefix")

    def __init__(self, family: int, box: str, gate: str, prefix: int, any_address: str) -> None:
        """With a `prefix` as long as the address, the box has no neighbours and sends all its traffic to the gate."""
        self.family, self.box, self.gate = family, box, gate
        self.prefix, self.any_address = prefix, any_address


# The gate is the box's only neighbour: the kernel's table of neighbours (net.ipv4.neigh.default.gc_thresh3) is one for
# all namespaces. Multicast addresses have entries too, but the kernel removes these whenever the table is full.
IPV4 = LinkAddresses(socket.AF_INET, "192.168.1.20", "192.168.1.1", 32, "0.0.0.0")
# This is a private address, so programs that have a choice prefer IPv4 (RFC 6724).
IPV6 = LinkAddresses(socket.AF_INET6, "fd5e:84c2:77a1::20", "fd5e:84c2:77a1::1", 128, "::")
NAMES_PORT = 53
_BACKLOG = 128
_NO_IPV6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6"

_NEW_LINK, _SET_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 19, 20, 24
_ACKNOWLEDGED_CREATE = 0x0001 | 0x0004 | 0x0400
_NAME, _LINK_INFO, _NAMESPACE = 3, 18, 28
_KIND, _DATA, _PEER = 1, 2, 1
_FAMILIES, _GENERATED_ADDRESS, _NONE = 26, 8, b"\x01"
_NO_DUPLICATE_CHECK, _ON_LINK = 0x02, 4
_TABLE_MAIN, _TABLE_LOCAL = 254, 255
_BY_BOOT, _GLOBAL, _LINK = 3, 0, 253
_UNICAST, _LOCAL = 1, 2


def raise_device(name: str) -> None:
    set_flags, up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, set_flags, struct.pack("16sh14x", name.encode(), up_and_running))


def open_gate(box: int, owner: int, ports: list[int]) -> None:
    """Make the gate of a box. `box` is a descriptor of its network namespace, over which the caller must have all
    rights.

    Send the gate's sockets over the unix socket `owner`: DNS over UDP, DNS over TCP, then one for each port. They are
    IPv6 sockets that accept both families, or IPv4 sockets if the kernel has no IPv6."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    listeners: list[socket.socket] = []
    try:
        kernel.unshare(kernel.CLONE_NEWNET, "network gate")
        families = [IPV4, IPV6] if has_ipv6() else [IPV4]
        _configure_gate(box, families)
        family = families[-1].family
        listeners.append(_bind(family, socket.SOCK_DGRAM, NAMES_PORT))
        for port in (NAMES_PORT, *ports):
            listeners.append(_bind(family, socket.SOCK_STREAM, port))
            listeners[-1].listen(_BACKLOG)
        kernel.enter_network(box)
        _configure_box(families)
        with socket.socket(fileno=os.dup(owner)) as line:
            socket.send_fds(line, [b"gate"], [listener.fileno() for listener in listeners])
    finally:
        for listener in listeners:
            listener.close()
        kernel.enter_network(home)
        os.close(home)


def has_ipv6() -> bool:
    try:
        with open(_NO_IPV6, "rb") as file:
            return file.read().strip() == b"0"
    except OSError:
        return False


def _bind(family: int, kind: int, port: int) -> socket.socket:
    listener = socket.socket(family, kind)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("", port))
    return listener


def _configure_gate(box: int, families: list[LinkAddresses]) -> None:
    """Join the current namespace (the gate) and the box's by a veth pair. Every address but the box's own becomes
    local."""
    with _Netlink() as netlink:
        netlink.add_veth("gate0", "eth0", box)
        for net in families:
            netlink.add_address("gate0", net, net.gate)
        if IPV6 in families:
            netlink.forbid_link_local("gate0")
        for device in ("lo", "gate0"):
            raise_device(device)
        # Both routes are in the kernel's table of local addresses, where the longer prefix wins. So all addresses but
        # the box's own are local.
        for net in families:
            netlink.add_route(net, _LOCAL, "lo", net.any_address, table=_TABLE_LOCAL)
            netlink.add_route(net, _UNICAST, "gate0", net.box, table=_TABLE_LOCAL)


def _configure_box(families: list[LinkAddresses]) -> None:
    with _Netlink() as netlink:
        for net in families:
            netlink.add_address("eth0", net, net.box)
        if IPV6 in families:
            netlink.forbid_link_local("eth0")
        raise_device("eth0")
        for net in families:
            netlink.add_route(net, _UNICAST, "eth0", net.any_address, table=_TABLE_MAIN, gateway=net.gate)


class _Netlink(socket.socket):
    """A netlink socket in the network namespace in which it was made. Requests that the kernel refuses raise
    StepFailed."""

    def __init__(self) -> None:
        super().__init__(socket.AF_NETLINK, socket.SOCK_RAW, 0)

    def add_veth(self, here: str, there: str, namespace: int) -> None:
        link = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
        peer = link + _attribute(_NAME, there.encode() + b"\0") + _attribute(_NAMESPACE, struct.pack("=I", namespace))
        kind = _attribute(_KIND, b"veth") + _attribute(_DATA, _attribute(_PEER, peer))
        body = link + _attribute(_NAME, here.encode() + b"\0") + _attribute(_LINK_INFO, kind)
        self._ask(_NEW_LINK, body, "veth")

    def forbid_link_local(self, device: str) -> None:
        """Keep the kernel from giving the device a link-local IPv6 address. With it, all of fe80::/64 would be the
        device's neighbours, and the box could fill the kernel's table of neighbours: from its own device by sending to
        such addresses, at the gate by claiming to send from them."""
        link = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(device), 0, 0)
        mode = _attribute(_FAMILIES, _attribute(socket.AF_INET6, _attribute(_GENERATED_ADDRESS, _NONE)))
        self._ask(_SET_LINK, link + mode, "network gate")

    def add_address(self, device: str, net: LinkAddresses, address: str) -> None:
        packed = socket.inet_pton(net.family, address)
        flags = _NO_DUPLICATE_CHECK if net is IPV6 else 0  # Duplicate detection would take a second.
        body = struct.pack("=BBBBI", net.family, net.prefix, flags, _GLOBAL, socket.if_nametoindex(device))
        self._ask(_NEW_ADDRESS, body + _attribute(1, packed) + _attribute(2, packed), "network gate")

    def add_route(self, net: LinkAddresses, kind: int, device: str, to: str, *, table: int, gateway: str = "") -> None:
        packed = socket.inet_pton(net.family, to)
        bits = 0 if to == net.any_address else 8 * len(packed)
        scope = {_LOCAL: 254, _UNICAST: _GLOBAL if gateway else _LINK}[kind]
        flags = _ON_LINK if gateway else 0
        body = struct.pack("=BBBBBBBBI", net.family, bits, 0, 0, table, _BY_BOOT, scope, kind, flags)
        if bits:
            body += _attribute(1, packed)
        body += _attribute(4, struct.pack("=I", socket.if_nametoindex(device)))
        if gateway:
            body += _attribute(5, socket.inet_pton(net.family, gateway))
        self._ask(_NEW_ROUTE, body, "network gate")

    def _ask(self, kind: int, body: bytes, step: str) -> None:
        self.send(struct.pack("=IHHII", 16 + len(body), kind, _ACKNOWLEDGED_CREATE, 1, 0) + body)
        answer = self.recv(1 << 16)
        number = -struct.unpack_from("=i", answer, 16)[0]
        if number:
            raise kernel.StepFailed(step, number)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
