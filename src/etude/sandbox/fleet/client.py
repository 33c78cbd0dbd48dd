"""FleetSandboxes: a client that offers the fleet as a sandbox backend like any other. It can be sent to other services;
each copy owns its own boxes.

A client's boxes live as long as the client renews its lease, which it does by itself while its event loop runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from etude.cluster.contract import ClusterError, DeadlineExceeded, Remote, ServiceDied
from etude.sandbox.contract import Box, BoxSpec, Capability, Feature, SandboxError, SandboxUnavailable
from etude.sandbox.fleet.images import ImageCall
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.remote_box import RemoteBox
from etude.sandbox.fleet.remote_errors import as_sandbox_errors
from etude.sandbox.options import Build, BuildOptions


class FleetSandboxes:
    """Sandbox backend that gets its boxes from the fleet's dispatcher. Each instance owns the boxes that it makes."""

    def __init__(
        self,
        dispatcher: Remote,
        features: frozenset[Feature],
        policy: Policy,
        capabilities: frozenset[Capability],
    ) -> None:
        self.dispatcher, self._policy = dispatcher, policy
        self.features, self.capabilities = features, capabilities
        self._owner = secrets.token_hex(8)
        self._requests = 0
        self._closed = False
        self._renewing: asyncio.Task[None] | None = None

    def __reduce__(self) -> Any:
        return FleetSandboxes, (self.dispatcher, self.features, self._policy, self.capabilities)

    # -- images

    async def add_image(self, files: dict[str, bytes], *, base: str = "host", workdir: str = "/work") -> str:
        return await self._make(ImageCall("add_image", (files,), {"base": base, "workdir": workdir}))

    async def import_image(self, source: Path) -> str:
        return await self._make(ImageCall("import_image", (Path(source).absolute(),), {}))

    async def pull_image(self, reference: str) -> str:
        return await self._make(ImageCall("pull_image", (reference,), {}))

    async def build_image(self, context: Path, **options: Unpack[BuildOptions]) -> str:
        asked = Build(Path(context).absolute(), **options)
        sent = {
            "dockerfile": asked.dockerfile and Path(asked.dockerfile).absolute(),
            "target": asked.target,
            "arguments": asked.arguments,
            "egress": asked.egress,
        }
        # Always as a stream: if this client stops reading it, the build on the host is cancelled.
        return await self._make(ImageCall("build_image", (asked.context,), sent), asked.say or (lambda _: None))

    async def _make(self, image_call: ImageCall, say: Callable[[str], None] | None = None) -> str:
        """Make an image on one host and report it to the dispatcher. `say` gets lines of output."""
        name, host = await self.ask("image_host")
        seconds = self._policy.image_seconds
        with as_sandbox_errors(f"host {name}"):
            if say is None:
                image = await host.call("make_image", image_call, deadline=seconds)
            else:
                async for item in host.stream("build_image", image_call, deadline=seconds):
                    if isinstance(item, str):
                        image = item
                    else:
                        for line in item:
                            say(line)
        await self.ask("learn_image", image, name, image_call)
        return str(image)

    # -- boxes

    async def create(self, spec: BoxSpec) -> Box:
        if self._closed:
            raise SandboxError("this backend is closed; open another")
        box, name, host = await self._granted("create", spec)
        return RemoteBox(self, box, name, host)

    async def fork(self, parent: str, count: int, kill: bool) -> list[str]:
        return list(await self._granted("fork", parent, count, kill))

    async def _granted(self, method: str, *args: Any) -> Any:
        """Call a method of the dispatcher that makes boxes, and wait for as long as the scheduler may need. If the
        caller stops waiting or the dispatcher does not answer, withdraw the request."""
        self._renew_from_now_on()
        self._requests += 1
        request, policy = f"{self._owner}-{self._requests}", self._policy
        seconds = policy.patience + policy.attempts * (policy.create_seconds + policy.image_seconds)
        try:
            return await self.ask(method, request, self._owner, *args, deadline=seconds)
        except (asyncio.CancelledError, SandboxUnavailable):
            with contextlib.suppress(SandboxError):
                await asyncio.shield(self.ask("drop", request))
            raise

    async def ask(self, method: str, *args: Any, deadline: float = 30.0) -> Any:
        """Call the dispatcher, turning cluster errors into sandbox errors."""
        try:
            return await self.dispatcher.call(method, *args, deadline=deadline)
        except (ServiceDied, DeadlineExceeded) as error:
            raise SandboxUnavailable(f"the fleet's dispatcher does not answer: {error}") from error
        except ClusterError as error:
            raise SandboxError(f"the fleet's dispatcher failed: {error}") from error

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
        await self.ask("leave", self._owner, deadline=self._policy.create_seconds)

    # -- the lease

    def _renew_from_now_on(self) -> None:
        """Start the task that renews this client's lease, unless it already runs on the current event loop."""
        task = self._renewing
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._policy.lease_seconds / 4)
            with contextlib.suppress(SandboxError):
                await self.ask("renew", self._owner, deadline=self._policy.lease_seconds / 4)
