"""A client of the Docker Engine API, which both Docker and podman serve. It covers the calls that the OCI backend
needs, and raises one family of errors.

Each call has its own connection, so a client keeps no state and may be used from any event loop. Where the two engines
differ, the difference is handled here and explained in a comment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from etude.sandbox.contract import DiskFull, SandboxError, SandboxLost, SandboxUnavailable
from etude.sandbox.oci.attachment import Attachment

_VERSION = "/v1.40"
_CALL_SECONDS = 60.0
_TRANSFER_SECONDS = 1800.0
_REMOVALS, _REMOVAL_PAUSE = 100, 0.1
Content = bytes | AsyncIterable[bytes]


class EngineError(SandboxError):
    """The engine refused a call. `status` is the HTTP status of its response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Engine:
    def __init__(self, endpoint: str) -> None:
        """Raise SandboxUnavailable if no engine answers at `endpoint`: unix:///path or tcp://host:port."""
        self.endpoint = endpoint
        parts = urlsplit(endpoint)
        self._socket = parts.path if parts.scheme == "unix" else None
        if not (self._socket or (parts.scheme == "tcp" and parts.hostname and parts.port)):
            raise SandboxUnavailable(
                f"endpoint {endpoint!r}: expected unix:///path/of.sock or tcp://host:port (a remote engine is best "
                "reached through ssh -L of its socket)"
            )
        self._address = (parts.hostname or "", parts.port or 0)
        self._base = "http://engine" if self._socket else f"http://{parts.hostname}:{parts.port}"
        try:
            with httpx.Client(transport=httpx.HTTPTransport(uds=self._socket, verify=False), timeout=10) as client:
                info: dict[str, Any] = client.get(f"{self._base}/info").raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            raise SandboxUnavailable(
                f"no container engine answers at {endpoint} ({error}): start Docker, or "
                "`podman system service --time 0 unix:///path/of.sock`, and name it in sandbox.endpoint"
            ) from error

        options = ",".join(info.get("SecurityOptions") or ())
        # Rootless Docker reports this as a security option, rootless podman as its own field.
        self.root_is_apart = "name=userns" in options or "name=rootless" in options or info.get("Rootless") is True
        """Whether root in a container has another user id on the host than the host's own root."""
        self._runtimes = sorted(info.get("Runtimes") or ())
        # podman has one runtime for all containers, and ignores what a request says.
        self._only_runtime = str(info.get("DefaultRuntime")) if "Rootless" in info else ""

    def require_runtime(self, name: str) -> None:
        """Raise SandboxUnavailable unless the engine has this runtime. An empty name means its default."""
        if name and self._only_runtime and name != self._only_runtime:
            raise SandboxUnavailable(
                f"sandbox.runtime = {name!r}: the podman at {self.endpoint} runs all containers by "
                f"{self._only_runtime}; start its service by `podman --runtime {name} system service`, or leave it out"
            )
        if name and name not in self._runtimes:
            raise SandboxUnavailable(
                f"sandbox.runtime = {name!r}: the engine at {self.endpoint} has {', '.join(self._runtimes)}; see "
                '"runtimes" in its daemon.json'
            )

    @property
    def local(self) -> bool:
        """Whether the engine runs on this host. Only then can it mount this host's folders in boxes."""
        return self._socket is not None

    # -- calls

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: object = None,
        content: Content | None = None,
        patience: float = _CALL_SECONDS,
    ) -> Any:
        """Make a call and return the response's JSON, or None if it has none. Raise EngineError if it is refused."""
        headers = {"Content-Type": "application/x-tar"} if content is not None else {}
        try:
            async with self._client(patience) as client:
                answer = await client.request(
                    method, f"{_VERSION}{path}", params=params, json=body, content=content, headers=headers
                )
        except httpx.HTTPError as error:
            raise self._gone(error) from error
        if answer.is_error:
            raise _refusal(method, path, answer.status_code, answer.text)
        return answer.json() if answer.headers.get("content-type", "").startswith("application/json") else None

    async def progress(
        self, path: str, *, params: dict[str, Any], content: Content | None = None, say: Callable[[str], None]
    ) -> None:
        """Make a POST call (pull, load, build) whose response is a stream of JSON reports, and pass their texts to
        `say`. Raise EngineError if a report is an error."""
        headers = {"Content-Type": "application/x-tar"} if content is not None else {}
        try:
            async with (
                self._client(_TRANSFER_SECONDS) as client,
                client.stream("POST", f"{_VERSION}{path}", params=params, content=content, headers=headers) as answer,
            ):
                if answer.is_error:
                    raise _refusal("POST", path, answer.status_code, (await answer.aread()).decode(errors="replace"))
                async for line in answer.aiter_lines():
                    _report(line, path, say)
        except httpx.HTTPError as error:
            raise self._gone(error) from error

    def _client(self, patience: float) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=self._socket, verify=False)
        return httpx.AsyncClient(transport=transport, base_url=self._base, timeout=patience)

    def _gone(self, error: Exception) -> SandboxLost:
        return SandboxLost(f"the engine at {self.endpoint} does not answer ({error or type(error).__name__})")

    # -- containers

    async def create(self, name: str, body: dict[str, Any]) -> str:
        answer = await self.call("POST", "/containers/create", params={"name": name}, body=body)
        return str(answer["Id"])

    async def attach(self, container: str, channel: asyncio.Protocol) -> Attachment:
        """Connect the container's streams to `channel`. Call this before the container starts."""
        loop = asyncio.get_running_loop()
        attachment = Attachment(container, channel)
        try:
            if self._socket:
                await loop.create_unix_connection(lambda: attachment, self._socket)
            else:
                await loop.create_connection(lambda: attachment, *self._address)
        except OSError as error:
            raise self._gone(error) from error
        await attachment.upgrade(f"{_VERSION}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1")
        return attachment

    async def put(self, container: str, path: str, tar: Content) -> None:
        path, params = f"/containers/{container}/archive", {"path": path}
        await self.call("PUT", path, params=params, content=tar, patience=_TRANSFER_SECONDS)

    async def remove(self, kind: str, name: str) -> bool:
        """Remove an object of the kind "containers", "volumes" or "images". Return False if it is still in use."""
        params = {"force": "true", "v": "true"} if kind == "containers" else {}
        # The engine removes an ended container by itself, and refuses our request while it does.
        for _ in range(_REMOVALS if kind == "containers" else 1):
            try:
                await self.call("DELETE", f"/{kind}/{quote(name, safe=':')}", params=params)
            except EngineError as error:
                if error.status == 404:
                    return True
                await asyncio.sleep(_REMOVAL_PAUSE)
            else:
                return True
        return False

    # -- images

    async def image(self, reference: str) -> dict[str, Any] | None:
        """Return the engine's description of an image; None if there is no such image."""
        try:
            found: dict[str, Any] = await self.call("GET", f"/images/{quote(reference, safe=':/')}/json")
        except EngineError as error:
            if error.status != 404:
                raise
            return None
        return found

    async def tag(self, image: str, repository: str, tag: str) -> None:
        await self.call("POST", f"/images/{quote(image, safe=':/')}/tag", params={"repo": repository, "tag": tag})

    async def commit(self, container: str, repository: str, tag: str) -> None:
        # podman wants a body, even an empty one.
        params = {"container": container, "repo": repository, "tag": tag, "pause": "false"}
        await self.call("POST", "/commit", params=params, body={}, patience=_TRANSFER_SECONDS)

    async def import_root(self, tar: Content, labels: dict[str, str]) -> str:
        """Import a tar of a root file system as an image with one layer; return the image's id."""
        reports: list[str] = []
        # podman takes no tag here, and puts everything into one report with the image's id.
        params = {"fromSrc": "-", "changes": [f"LABEL {key}={value}" for key, value in labels.items()]}
        await self.progress("/images/create", params=params, content=tar, say=reports.append)
        return reports[-1].strip() if reports else ""

    async def list_labelled(self, kind: str, label: str) -> Iterable[dict[str, Any]]:
        params = {"filters": json.dumps({"label": [label]}), "all": "true"}
        path = {"containers": "/containers/json", "volumes": "/volumes", "images": "/images/json"}[kind]
        answer = await self.call("GET", path, params=params)
        found = answer["Volumes"] if kind == "volumes" else answer
        return found or []


def _refusal(method: str, path: str, status: int, text: str) -> SandboxError:
    try:
        text = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        text = text.strip()[:500]
    if "no space left" in text:
        return DiskFull(f"the engine's disk is full: {text}")
    return EngineError(status, f"the engine refused {method} {path}: {text} (status {status})")


def _report(line: str, path: str, say: Callable[[str], None]) -> None:
    try:
        report = json.loads(line)
    except ValueError:
        say(line)
        return
    if "error" in report:
        raise EngineError(500, str(report["error"]).strip())
    text = report.get("stream") or report.get("status") or ""
    if text:
        say(text)
