"""Egress policies: which host names a box may reach. A name that no pattern covers does not exist for the box: it gets
no address.

Names are compared label by label in one normal form: ASCII, lower case, without the trailing dot. International names
are written in their encoded form ("xn--..."), so that no translation rule can turn one name into another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from etude.sandbox.contract import Egress, RequestRefused
from etude.sandbox.proxies import UpstreamProxy

DEFAULT_PORTS = (443, 80)
_MOST_PORTS = 32
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_ADDRESS_LIKE = re.compile(r"[0-9]+|0x[0-9a-f]*")


def host_name(text: str) -> str | None:
    """Return the normal form of a host name: lower case, without the trailing dot. Return None if the text is not an
    ASCII host name, for example if it is an address."""
    if not text.isascii():  # Before lower(), which turns some non-ASCII letters into ASCII ones.
        return None
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or _ADDRESS_LIKE.fullmatch(labels[-1]):
        return None
    return name


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry of an egress policy: a host, or all subdomains of a host, on certain ports."""

    host: str
    below: bool
    """Whether the pattern matches every subdomain of the host, instead of the host itself."""
    ports: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parse "index.example", "*.packages.example", or either with a port. Raise RequestRefused for anything
        else."""
        host, colon, port = text.partition(":")
        below = host.startswith("*.")
        name = host_name(host[2:] if below else host)
        if name is None or (below and "." not in name):
            raise RequestRefused(
                f"egress pattern {text!r}: expected a host's name in ASCII ('index.example'), all names below one of "
                "at least two labels ('*.packages.example'), or either with a port (':8443')"
            )
        if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536 and int(port) != 53):
            raise RequestRefused(f"egress pattern {text!r}: expected a port of 1 to 65535 but 53, found {port!r}")
        return cls(name, below, (int(port),) if colon else DEFAULT_PORTS)

    def covers(self, name: str) -> bool:
        return name.endswith(f".{self.host}") if self.below else name == self.host


class Policy:
    """A parsed egress policy. The constructor raises RequestRefused if the policy cannot be parsed."""

    def __init__(self, egress: Egress) -> None:
        self.name, self.credentials, self.private = egress.name, egress.credentials, egress.private
        self.proxy = UpstreamProxy.parse(egress.proxy, f"egress policy {egress.name!r}") if egress.proxy else None
        self.patterns = tuple(Pattern.parse(text) for text in egress.allow)
        self.ports = sorted({port for pattern in self.patterns for port in pattern.ports})
        if len(self.ports) > _MOST_PORTS:
            raise RequestRefused(
                f"egress policy {egress.name!r} names {len(self.ports)} ports; at most {_MOST_PORTS} are possible"
            )

    def allows(self, name: str, port: int | None = None) -> bool:
        """Whether boxes may reach the host `name` on `port`. If `port` is None: whether they may reach it on any port.
        `name` is in the form that `host_name` returns."""
        return any(pattern.covers(name) and (port is None or port in pattern.ports) for pattern in self.patterns)
