"""The Docker Engine API, as served by both Docker and podman: typed as far as we use it, with one error family.

Each call has its own connection, so a client keeps no state and may be used from any event loop. Where the two engines
differ, the difference is handled here and named in a comment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from etude.sandbox.contract import DiskFull, SandboxError, SandboxLost, SandboxUnavailable
from etude.sandbox.oci.attach import Attachment

_VERSION = "/v1.40"
_CALL_SECONDS = 60.0
_TRANSFER_SECONDS = 1800.0
_REMOVALS, _REMOVAL_PAUSE = 100, 0.1
Content = bytes | AsyncIterable[bytes]


class EngineError(SandboxError):
    """The engine refused a call; `status` is the HTTP status of its response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Engine:
    def __init__(self, endpoint: str) -> None:
        """`endpoint` is unix:///path or tcp://host:port. SandboxUnavailable if no engine answers there."""
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
        """Whether a container's root has another id on the host than the host's root."""
        self._runtimes = sorted(info.get("Runtimes") or ())
        # podman has one runtime for all containers, and ignores what a request says.
        self._only_runtime = str(info.get("DefaultRuntime")) if "Rootless" in info else ""

    def require_runtime(self, name: str) -> None:
        """Raises SandboxUnavailable unless containers can have this runtime; the default, "", always works."""
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
        """Whether the engine shares our file system: only then can boxes be made over this host's folders."""
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
        """Makes a call and returns the JSON response, or None if there is none; EngineError if the engine refuses."""
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

    async def download(self, path: str, *, params: dict[str, Any], limit: int) -> bytes:
        """Downloads a body of at most `limit` bytes; EngineError 413 beyond."""
        parts, size = [], 0
        try:
            async with (
                self._client(_TRANSFER_SECONDS) as client,
                client.stream("GET", f"{_VERSION}{path}", params=params) as answer,
            ):
                if answer.is_error:
                    raise _refusal("GET", path, answer.status_code, (await answer.aread()).decode(errors="replace"))
                async for part in answer.aiter_raw():
                    size += len(part)
                    if size > limit:
                        raise EngineError(413, f"{path}: more than {limit} bytes")
                    parts.append(part)
        except httpx.HTTPError as error:
            raise self._gone(error) from error
        return b"".join(parts)

    async def progress(
        self, path: str, *, params: dict[str, Any], content: Content | None = None, say: Callable[[str], None]
    ) -> None:
        """A POST whose response is a stream of JSON reports (pull, load, build); raises if one is an error."""
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
        """Connects the container's standard streams to `channel`, before the container starts."""
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
        """Removes the object; returns whether it is gone. False while it is in use."""
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
        # podman reads a body even if there is nothing to say in it.
        params = {"container": container, "repo": repository, "tag": tag, "pause": "false"}
        await self.call("POST", "/commit", params=params, body={}, patience=_TRANSFER_SECONDS)

    async def import_root(self, tar: Content, labels: dict[str, str]) -> str:
        """Imports a tar as an image of one layer; returns its id."""
        reports: list[str] = []
        # podman takes no tag here, and puts everything into one report with the image's id.
        params = {"fromSrc": "-", "changes": [f"LABEL {key}={value}" for key, value in labels.items()]}
        await self.progress("/images/create", params=params, content=tar, say=reports.append)
        return reports[-1].strip() if reports else ""

    async def names_with(self, kind: str, label: str) -> Iterable[dict[str, Any]]:
        """All containers, volumes or images with a label, as the engine lists them."""
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
