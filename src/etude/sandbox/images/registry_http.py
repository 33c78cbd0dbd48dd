"""Sends HTTP requests to a registry, with authentication, redirects, and the host's proxy.

Invariant: only the response to the caller's own request may be long, and it is read only as far as the caller reads it.
All other responses are read up to a limit, and never decompressed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from etude.sandbox.contract import ImageError
from etude.sandbox.images.credentials import RegistryAuth
from etude.sandbox.images.reference import Reference, is_loopback
from etude.sandbox.proxies import Proxies, UpstreamProxy

_TIMEOUT = httpx.Timeout(60.0, connect=15.0)
_MAX_REQUESTS = 8
"""Maximum number of requests to get one file, including redirects and one login."""
_MAX_OTHER_BODY = 1 << 20
"""Maximum bytes of a response other than the requested file: a refusal, a redirect, or a token."""
_WANTS_LOGIN = (
    "this host's proxy wants a login, or another one (HTTP {status}): HTTPS_PROXY=http://user:password@host:port"
)


class RegistryHttp:
    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._on_loopback = is_loopback(reference.host)
        self._auth = RegistryAuth(reference)
        self._client = httpx.Client(
            transport=_ProxyTransport(),
            timeout=_TIMEOUT,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
        )

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def get(self, path: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Yield the response for a path, with its body unread. Follows redirects, and logs in if asked to."""
        origin = url = httpx.URL(f"{self._reference.url}/{path}")
        authenticated = False
        for _ in range(_MAX_REQUESTS):
            same_origin = _origin(url) == _origin(origin)
            login = {"Authorization": self._auth.header} if same_origin and self._auth.header else {}
            with self._stream(url, headers | login) as response:
                if response.has_redirect_location:
                    url = self._goal(url, response.headers["Location"])
                elif (
                    same_origin
                    and not authenticated
                    and response.status_code == 401
                    and self._auth.prepare(response, self._ask)
                ):
                    authenticated = True
                else:
                    yield response
                    return
                _read(response)  # Reading the body frees the connection for another request.
        raise ImageError(f"{self._reference}: {origin.host} redirects without end")

    @contextmanager
    def _stream(self, url: httpx.URL, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Send a GET request and yield the response. Raise ImageError if the host's proxy asks for a login."""
        try:
            with self._client.stream("GET", url, headers=headers) as response:
                yield response
        except httpx.ProxyError as error:
            status = str(error)[:3]  # The status of the proxy's answer to CONNECT.
            if status in ("401", "407"):
                raise ImageError(f"{self._reference}: {_WANTS_LOGIN.format(status=status)}") from error
            raise

    def _goal(self, url: httpx.URL, location: str) -> httpx.URL:
        """Return the target of a redirect. It must be https, or on this machine if the registry is there too."""
        goal = url.join(location)
        loopback = is_loopback(goal.netloc.decode())
        if (goal.scheme != "https" and not loopback) or (loopback and not self._on_loopback):
            raise ImageError(f"{self._reference}: {url.host} leads to {_shown(goal)}; expected an https address")
        return goal

    def _ask(self, url: httpx.URL, headers: dict[str, str]) -> tuple[int, bytes]:
        with self._stream(url, headers) as response:
            answer = _read(response)
            if answer is None:
                raise ImageError(f"{self._reference}: {url.host} gave a token of more than {_MAX_OTHER_BODY} bytes")
            return response.status_code, answer


class _ProxyTransport(httpx.BaseTransport):
    """Sends each request directly or through this host's proxy, depending on its address."""

    def __init__(self) -> None:
        self._proxies = Proxies.of_host()
        proxies = {None, self._proxies.http, self._proxies.https}
        self._transports = {proxy: httpx.HTTPTransport(proxy=_for_httpx(proxy)) for proxy in proxies}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        tls = request.url.scheme == "https"
        host, port = request.url.host, request.url.port or (443 if tls else 80)
        proxy = self._proxies.proxy_for(host, port, tls=tls)
        if proxy and self._proxies.exceptions.networks:
            proxy = self._proxies.proxy_for(host, port, tls=tls, addresses=_addresses(host, port))
        return self._transports[proxy].handle_request(request)

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()


def _for_httpx(proxy: UpstreamProxy | None) -> httpx.Proxy | None:
    if proxy is None:
        return None
    user, _, password = proxy.login.partition(":")
    return httpx.Proxy(proxy.url, auth=(user, password) if proxy.login else None)


def _addresses(host: str, port: int) -> list[str]:
    """Return the host's IP addresses, or [] if this machine cannot resolve its name; the proxy may be able to."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def _read(response: httpx.Response) -> bytes | None:
    """Return the body of a response, or None if it is longer than _MAX_OTHER_BODY."""
    body = b""
    for piece in response.iter_raw():
        body += piece
        if len(body) > _MAX_OTHER_BODY:
            return None
    return body


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _shown(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"
