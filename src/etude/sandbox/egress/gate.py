"""Gives the boxes of one backend network access under egress policies. Each box has its own proxy. The boxes share
a log and a certificate authority; a layer over each box's image makes its programs trust that authority.

A backend creates its EgressGate with its first box that has an egress policy. A backend without such boxes never
imports this module.
"""

from __future__ import annotations

import socket
from pathlib import Path

from etude.sandbox.contract import Egress, SandboxLost
from etude.sandbox.egress.authority import Authority
from etude.sandbox.egress.log import BoxLog, EgressLog
from etude.sandbox.egress.policy import Policy
from etude.sandbox.egress.proxy import ConnectionLimit, Proxy
from etude.sandbox.egress.proxy_layer import ENVIRONMENT, files_behind_proxy, write_layer
from etude.sandbox.egress.upstream import Upstream
from etude.sandbox.images.stack import Stack
from etude.sandbox.images.store import ImageStore
from etude.sandbox.images.store_process import in_store_process

_MOST_SOCKETS = 64


class BoxEgress:
    """The network access of one box, from before the box is made until it is gone."""

    def __init__(self, gate: EgressGate, egress: Egress, box: str) -> None:
        self._gate, self._policy, self._box = gate, Policy(egress), box
        self._proxy: Proxy | None = None
        self._ours, self.box_end = socket.socketpair()
        """A socket pair. The zygote gets `box_end` and sends the listening sockets of the box's network over it."""
        self._ours.setblocking(False)

    @property
    def env(self) -> dict[str, str]:
        return ENVIRONMENT

    @property
    def ports(self) -> list[int]:
        """The ports that the policy allows, on which the box's network listens."""
        return self._policy.ports

    def open(self) -> None:
        """Start the proxy, once the box is ready. Raises SandboxLost if the zygote (the process that makes boxes) has
        not sent the listening sockets of the box's network."""
        try:
            _, numbers, _, _ = socket.recv_fds(self._ours, 16, _MOST_SOCKETS)
        except BlockingIOError:
            numbers = []
        if not numbers:
            raise SandboxLost(f"box {self._box}: its network was not opened")
        self.box_end.close()
        sockets = [socket.socket(fileno=number) for number in numbers]
        log = BoxLog(self._gate.log, self._box, self._policy.name)
        self._proxy = Proxy(
            sockets, self._policy, self._gate.authority, self._gate.upstream, log, self._gate.connection_limit
        )

    def shut(self) -> None:
        """Close the proxy and all sockets of the box's network. Only these sockets keep the network alive."""
        for end in (self._ours, self.box_end):
            end.close()
        if self._proxy is not None:
            self._proxy.close()


class EgressGate:
    def __init__(self, store: ImageStore, upstream: Upstream) -> None:
        self.authority, self.upstream, self.connection_limit = Authority(), upstream, ConnectionLimit()
        _ = upstream.proxies  # Unusable proxy settings are refused here, before a box is made.
        self.log = EgressLog(store.root / "egress", store.owner)
        self._scratch = store.scratch / "egress"
        self._store = store
        self._layers: dict[str, Path] = {}

    def for_box(self, egress: Egress, box: str) -> BoxEgress:
        return BoxEgress(self, egress, box)

    def layer_for(self, image: str, stack: Stack) -> Path:
        """Return the layer that makes an image trust the proxy and use its name server. Made once per image."""
        if image not in self._layers:
            target = self._scratch / image
            _make_layer(self._store, target, stack, self.authority.pem, self.authority.lookup_name)
            self._layers[image] = target
        return self._layers[image]


@in_store_process
def _make_layer(store: ImageStore, target: Path, stack: Stack, authority: bytes, lookup_name: str) -> None:
    files = files_behind_proxy(stack, authority, lookup_name)
    write_layer(target, files, store.ids.first if store.ids else None)
