"""How this host itself gets to the web: directly, or through an HTTP proxy, as many companies have one.

Invariant: a proxy's login is sent to that proxy alone. It is in no message, log or repr, and never inside a box.
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
    """user:password, or nothing."""

    @classmethod
    def parse(cls, text: str, where: str) -> UpstreamProxy:
        """RequestRefused, which quotes nothing that could hold a login, for what is no address of a proxy."""
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
        """Without the login."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def authorization(self) -> str:
        """The value of Proxy-Authorization; empty without a login."""
        return f"Basic {base64.b64encode(self.login.encode()).decode()}" if self.login else ""


@dataclass(frozen=True, slots=True)
class NoProxy:
    """Hosts that are reached without the proxy: NO_PROXY.

    A name stands for itself and all below it, with or without a dot or "*." ahead; "*" for everything. Addresses and
    networks ("10.0.0.0/8") stand for hosts whose address lies there. Each may have a port."""

    names: tuple[tuple[str, int | None], ...] = ()
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
        """Of a name or an address."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = None
        name = host.lower().removesuffix(".")
        if name == "localhost" or (address and address.is_loopback):  # A proxy's own is another machine's.
            return True
        if address and any(address in network for network, only in self.networks if only in (None, port)):
            return True
        return any(
            only in (None, port) and (one == "*" or (address is None and f".{name}".endswith(f".{one}")))
            for one, only in self.names
        )


@dataclass(frozen=True, slots=True)
class Proxies:
    http: UpstreamProxy | None = None
    https: UpstreamProxy | None = None
    """For hosts that speak TLS."""
    exceptions: NoProxy = field(default_factory=NoProxy)

    @classmethod
    def of_host(cls) -> Proxies:
        """By the variables that programs go by: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in small letters
        first. RequestRefused for an address that cannot be used."""
        found = getproxies_environment()

        def proxy_for(kind: str) -> UpstreamProxy | None:
            name = next((name for name in (kind, "all") if found.get(name)), "")
            return UpstreamProxy.parse(found[name], f"{name.upper()}_PROXY") if name else None

        return cls(proxy_for("http"), proxy_for("https"), NoProxy.parse(found.get("no", "")))

    def way_to(self, host: str, port: int, *, tls: bool, addresses: Sequence[str] = ()) -> UpstreamProxy | None:
        """None: directly. The host's addresses count where they are given and the exceptions name networks."""
        proxy = self.https if tls else self.http
        if proxy is None or self.exceptions.cover(host, port):
            return None
        return None if addresses and all(self.exceptions.cover(address, port) for address in addresses) else proxy


def _split_port(word: str) -> tuple[str, int | None]:
    """ "host:80", "[::1]:80"; an address of IPv6 without brackets has none."""
    host, colon, port = word.rpartition(":")
    if colon and port.isascii() and port.isdigit() and (":" not in host or host.endswith("]")):
        return host, int(port)
    return word, None
