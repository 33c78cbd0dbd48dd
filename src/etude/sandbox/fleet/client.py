"""FleetSandboxes: the fleet as a backend like any other. It can be sent to other services; each copy has its own boxes.

Its boxes live as long as it renews its lease, which it does by itself while its event loop runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from etude.cluster.contract import ClusterError, DeadlineExceeded, Remote, ServiceDied
from etude.sandbox.contract import Box, BoxSpec, Feature, SandboxError, SandboxUnavailable
from etude.sandbox.fleet.answer import answered_here
from etude.sandbox.fleet.images import Making
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.remote_box import RemoteBox
from etude.sandbox.options import Build, BuildOptions


class FleetSandboxes:
    def __init__(self, dispatcher: Remote, features: frozenset[Feature], policy: Policy) -> None:
        self.dispatcher, self.features, self._policy = dispatcher, features, policy
        self._owner = secrets.token_hex(8)
        self._requests = 0
        self._closed = False
        self._renewing: asyncio.Task[None] | None = None

    def __reduce__(self) -> Any:
        return FleetSandboxes, (self.dispatcher, self.features, self._policy)

    # -- images

    async def add_image(self, files: dict[str, bytes], *, base: str = "host", workdir: str = "/work") -> str:
        return await self._make(Making("add_image", (files,), {"base": base, "workdir": workdir}))

    async def import_image(self, source: Path) -> str:
        return await self._make(Making("import_image", (Path(source).absolute(),), {}))

    async def pull_image(self, reference: str) -> str:
        return await self._make(Making("pull_image", (reference,), {}))

    async def build_image(self, context: Path, **options: Unpack[BuildOptions]) -> str:
        asked = Build(Path(context).absolute(), **options)
        sent = {
            "dockerfile": asked.dockerfile and Path(asked.dockerfile).absolute(),
            "target": asked.target,
            "arguments": asked.arguments,
            "egress": asked.egress,
        }
        # Always a stream: when nobody reads it any more, the build on the host ends.
        return await self._make(Making("build_image", (asked.context,), sent), asked.say or (lambda _: None))

    async def _make(self, making: Making, say: Callable[[str], None] | None = None) -> str:
        name, host = await self.ask("image_host")
        seconds = self._policy.image_seconds
        with answered_here(f"host {name}"):
            if say is None:
                image = await host.call("make_image", making.method, making.args, making.options, deadline=seconds)
            else:
                async for said in host.stream("build_image", making.args, making.options, deadline=seconds):
                    if isinstance(said, str):
                        image = said
                    else:
                        for line in said:
                            say(line)
        await self.ask("learn_image", image, name, making)
        return str(image)

    # -- boxes

    async def create(self, spec: BoxSpec) -> Box:
        if self._closed:
            raise SandboxError("this backend is closed; open another")
        request = self.new_request()
        box, name, host = await self.granted(request, "create", request, self._owner, spec)
        return RemoteBox(self, box, name, host)

    async def fork(self, parent: str, count: int, kill: bool) -> list[str]:
        request = self.new_request()
        return list(await self.granted(request, "fork", request, self._owner, parent, count, kill))

    def new_request(self) -> str:
        self._requests += 1
        return f"{self._owner}-{self._requests}"

    async def granted(self, request: str, method: str, *args: Any) -> Any:
        """Asks for boxes, for as long as the scheduler may need. A request that nobody waits for is withdrawn."""
        self._renew_from_now_on()
        policy = self._policy
        seconds = policy.patience + policy.attempts * (policy.create_seconds + policy.image_seconds)
        try:
            return await self.ask(method, *args, deadline=seconds)
        except (asyncio.CancelledError, SandboxUnavailable):
            with contextlib.suppress(SandboxError):
                await asyncio.shield(self.ask("drop", request))
            raise

    async def ask(self, method: str, *args: Any, deadline: float = 30.0) -> Any:
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
        task = self._renewing
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._policy.lease_seconds / 4)
            with contextlib.suppress(SandboxError):
                await self.ask("renew", self._owner, deadline=self._policy.lease_seconds / 4)
