"""Egress, as far as it can be tested without a network: names that no pattern allows do not resolve."""

from __future__ import annotations

import pytest
from tests.contract.sandbox.support import SMALL, in_a_box, ok

from etude.sandbox import BoxSpec, Egress, Feature, RequestRefused, Sandboxes

_LOOK_UP = (
    "import socket, sys\n"
    "for name in sys.argv[1:]:\n"
    "    try: print(bool(socket.getaddrinfo(name, 443)))\n"
    "    except OSError: print(False)\n"
)
_REACH = (
    "import socket\n"
    "try:\n"
    "    s = socket.create_connection(('203.0.113.7', 443), 5)\n"
    "    s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(9))\n"
    "except OSError: print(b'')\n"
)


class EgressCases:
    @in_a_box()
    async def test_only_allowed_names_exist(self, sandboxes: Sandboxes, image: str) -> None:
        egress = Egress("test", ("Allowed.example.org", "*.below.example.org"))
        if Feature.EGRESS not in sandboxes.features:
            with pytest.raises(RequestRefused):
                await sandboxes.create(BoxSpec(image, egress=egress))
            return
        box = await sandboxes.create(BoxSpec(image, limits=SMALL, egress=egress))
        names = ["allowed.example.org", "a.below.example.org", "ALLOWED.example.org.", "below.example.org",
                 "example.org", "allowed.example.org.evil.example.org", "xallowed.example.org"]  # fmt: skip
        found = ok(await box.exec(["python", "-c", _LOOK_UP, *names], timeout=20)).split()
        assert found == ["True"] * 3 + ["False"] * 4
        assert ok(await box.exec(["python", "-c", _REACH], timeout=20)) == "b''\n"
        other = await sandboxes.create(BoxSpec(image, limits=SMALL))
        found = ok(await other.exec(["python", "-c", _LOOK_UP, *names], timeout=20)).split()
        assert found == ["False"] * 7

    @in_a_box()
    async def test_a_pattern_that_cannot_be_read(self, sandboxes: Sandboxes, image: str) -> None:
        for pattern in ("*", "https://example.org", "1.2.3.4", "example.org:99999"):
            with pytest.raises(RequestRefused, match="egress"):
                await sandboxes.create(BoxSpec(image, egress=Egress("test", (pattern,))))
