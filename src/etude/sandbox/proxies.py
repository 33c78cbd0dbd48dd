"""Reads how this host itself reaches the web: directly, or through an HTTP proxy, as in many companies.

Invariant: a proxy's login is sent only to that proxy. It never appears in a message, log or repr, and never inside a
box.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

from etude.sandbox.contract import RequestRefused

_EXPECTED = "expected http://host:port, with a login http://user:password@host:port"
_HOST = re.compile(r"[A-Za-z0-9_.:-]+")
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class UpstreamProxy:
    host: str
    port: int
    login: str = field(default="", repr=False)
    """"user:password"; empty if the proxy needs none."""

    @classmethod
    def parse(cls, text: str, where: str) -> UpstreamProxy:
        """Parse an address such as http://user:password@host:port. `where` is the variable or setting that holds it.
        Raise RequestRefused for a bad one, without quoting it, since it could hold a login."""
        address = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(address)
            host, port = parts.hostname or "", parts.port or 80
        except ValueError:
            raise RequestRefused(f"{where}: {_EXPECTED}; found no host or port in it") from None
        if parts.scheme != "http":
            raise RequestRefused(f"{where}: {_EXPECTED}; found {parts.scheme}://, which is not supported")
        if not _HOST.fullmatch(host) or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise RequestRefused(f"{where}: {_EXPECTED}; found no host, or more than host and port")
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}" if parts.username else ""
        return cls(host, port, login)

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def authorization(self) -> str:
        """Value of the Proxy-Authorization header; empty without a login."""
        return f"Basic {base64.b64encode(self.login.encode()).decode()}" if self.login else ""


@dataclass(frozen=True, slots=True)
class NoProxy:
    """The hosts that NO_PROXY lists, which are reached directly. A name covers itself and its subdomains, with or
    without a leading dot or "*."; "*" covers every host. An address or network ("10.0.0.0/8") covers the addresses in
    it. An entry with a port covers that port only."""

    names: tuple[tuple[str, int | None], ...] = ()
    """(host name, port) of each entry that is a name; port None covers all ports."""
    networks: tuple[tuple[_Network, int | None], ...] = ()

    @classmethod
    def parse(cls, text: str) -> NoProxy:
        names, networks = [], []
        for word in re.split(r"[,\s]+", text.lower()):
            host, port = _split_port(word)
            try:
                networks.append((ipaddress.ip_network(host.strip("[]"), strict=False), port))
            except ValueError:
                if name := host.removeprefix("*").strip(".") or ("*" if host == "*" else ""):
                    names.append((name, port))
        return cls(tuple(names), tuple(networks))

    def cover(self, host: str, port: int) -> bool:
        """Whether connections to this host (a name or an address) and port bypass the proxy."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = None
        name = host.lower().removesuffix(".")
        # The proxy would take localhost for its own machine.
        if name == "localhost" or (address and address.is_loopback):
            return True
        if address and any(address in network for network, only in self.networks if only in (None, port)):
            return True
        return any(
            only in (None, port) and (one == "*" or (address is None and f".{name}".endswith(f".{one}")))
            for one, only in self.names
        )


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies of this host; None means to connect directly."""

    http: UpstreamProxy | None = None
    https: UpstreamProxy | None = None
    exceptions: NoProxy = field(default_factory=NoProxy)

    @classmethod
    def of_host(cls) -> Proxies:
        """Read HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, preferring lower-case names. Raise RequestRefused for
        an address that cannot be used."""
        found = getproxies_environment()

        def from_variables(kind: str) -> UpstreamProxy | None:
            name = next((name for name in (kind, "all") if found.get(name)), "")
            return UpstreamProxy.parse(found[name], f"{name.upper()}_PROXY") if name else None

        return cls(from_variables("http"), from_variables("https"), NoProxy.parse(found.get("no", "")))

    def proxy_for(self, host: str, port: int, *, tls: bool, addresses: Sequence[str] = ()) -> UpstreamProxy | None:
        """Return the proxy for connections to this host, or None to connect directly. A host whose resolved `addresses`
        all lie in networks of NO_PROXY is reached directly."""
        proxy = self.https if tls else self.http
        if proxy is None or self.exceptions.cover(host, port):
            return None
        return None if addresses and all(self.exceptions.cover(address, port) for address in addresses) else proxy


def _split_port(word: str) -> tuple[str, int | None]:
    """Split "host:80" or "[::1]:80". An IPv6 address without brackets has no port."""
    host, colon, port = word.rpartition(":")
    if colon and port.isascii() and port.isdigit() and (":" not in host or host.endswith("]")):
        return host, int(port)
    return word, None
