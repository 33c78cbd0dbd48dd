"""The inline backend: every service runs in this process, on this event loop. For tests and debugging.

Arguments, results and stream items are pickled and unpickled on the way. So values that cannot be pickled fail here as
in the other backends, and no two services share memory by accident. A service's death is simulated: running calls are
cancelled, and later ones raise ServiceDied.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import time
import weakref
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

from etude.cluster.contract import Cluster, ClusterError, DeadlineExceeded, Health, Launch, ServiceDied
from etude.cluster.failure import Failure
from etude.cluster.hosting import HostedService, pickled_call
from etude.cluster.node_names import NodeNames

_clusters: weakref.WeakValueDictionary[int, InlineCluster] = weakref.WeakValueDictionary()
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value stored by `InlineCluster.put`. A method that gets this as an argument receives the value itself."""

    value: Any


class InlineRemote:
    def __init__(self, cluster: InlineCluster, name: str, service: str, args: bytes) -> None:
        """`args` are the pickled arguments of the service's constructor."""
        self._cluster, self._name, self._service, self._args = cluster, name, service, args
        self._hosted: HostedService | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._incarnation, self._started = 0, 0.0

    def __reduce__(self) -> Any:
        return _find, (self._cluster.number, self._name)

    @property
    def name(self) -> str:
        return self._name

    async def call(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> Any:
        hosted = self._require_alive(method)
        sent = pickled_call(method, *_resolved(args, kwargs))
        answer = pickle.loads(await self._run(method, hosted.reply(sent), deadline))
        if isinstance(answer, Failure):
            raise answer.exception(self._name, method)
        return answer

    async def stream(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> AsyncIterator[Any]:
        hosted = self._require_alive(method)
        items = hosted.stream(method, *_pickle_round_trip(_resolved(args, kwargs)))
        done = object()
        try:
            while True:
                if self._hosted is not hosted:
                    raise ServiceDied(f"{self._name} died while it streamed {method}")
                item = await self._run(method, _next(items, done), deadline)
                if item is done:
                    return
                yield _answer(item, self._name, method)
        finally:
            await items.aclose()

    async def health(self, *, deadline: float = 5.0) -> Health:
        if self._hosted is None:
            return Health(False, None, self._incarnation, 0.0, "killed")
        return Health(True, os.getpid(), self._incarnation, time.monotonic() - self._started)

    async def restart(self, *, deadline: float) -> None:
        await self.kill()
        if self._cluster.node_is_lost(self._name):
            raise ServiceDied(f"{self._name} cannot be started: its node is lost")
        args, kwargs = pickle.loads(self._args)
        self._incarnation += 1
        making = asyncio.to_thread(HostedService, self._service, args, kwargs)
        try:
            async with asyncio.timeout(deadline):
                self._hosted = await making
        except TimeoutError:
            raise DeadlineExceeded(f"{self._name} did not start within {deadline:g} s") from None
        except Exception as error:
            raise Failure.of(error).exception(self._name, "__init__") from error
        self._started = time.monotonic()

    async def kill(self) -> None:
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            hosted.close()
        for task in list(self._running):
            task.cancel()

    def _require_alive(self, method: str) -> HostedService:
        if self._hosted is None:
            raise ServiceDied(f"{self._name} is dead; it was asked for {method}")
        return self._hosted

    async def _run(self, method: str, work: Coroutine[Any, Any, Any], deadline: float) -> Any:
        """Run a call of the service until it ends, the service is killed or the deadline passes."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        incarnation = self._incarnation
        try:
            done, _ = await asyncio.wait([task], timeout=deadline)
        except asyncio.CancelledError:
            await _cancel(task)
            raise
        if not done:
            await _cancel(task)
            raise DeadlineExceeded(f"{self._name}.{method} did not answer within {deadline:g} s")
        if task.cancelled():
            raise ServiceDied(f"{self._name} died while it ran {method}, incarnation {incarnation}")
        return task.result()


class InlineCluster(Cluster):
    """A cluster whose nodes are names only: all services run in this process."""

    def __init__(self, nodes: int = 1) -> None:
        self.number = next(_numbers)
        self.remotes: dict[str, InlineRemote] = {}
        self._nodes = NodeNames(nodes)
        self._node_of: dict[str, str] = {}
        _clusters[self.number] = self

    async def nodes(self) -> list[str]:
        return list(self._nodes.living)

    async def lose_node(self, node: str) -> None:
        """Simulate the loss of a node: the services started there are killed and cannot be restarted."""
        self._nodes.lose(node)
        for name, where in self._node_of.items():
            if where == node:
                await self.remotes[name].kill()

    def node_is_lost(self, name: str) -> bool:
        return self._node_of[name] not in self._nodes.living

    async def launch(self, wanted: Launch, *, deadline: float) -> InlineRemote:
        """Start a service. `cpus` and `env` are ignored, since no process is started."""
        name = wanted.name
        if name in self.remotes:
            raise ClusterError(f"there is already a service called {name!r}")
        self._node_of[name] = self._nodes.chosen(wanted.node)
        sent = pickle.dumps(_resolved(wanted.args, wanted.kwargs), protocol=5)
        remote = self.remotes[name] = InlineRemote(self, name, wanted.service, sent)
        try:
            await remote.restart(deadline=deadline)
        except BaseException:
            del self.remotes[name], self._node_of[name]
            raise
        return remote

    async def put(self, value: Any) -> StoredValue:
        return StoredValue(_pickle_round_trip(value))

    async def get(self, reference: StoredValue, *, deadline: float) -> Any:
        return reference.value

    async def close(self) -> None:
        for remote in self.remotes.values():
            await remote.kill()
        await asyncio.sleep(0)


def _find(number: int, name: str) -> InlineRemote:
    """Unpickle a handle: return that of the service `name` in the open inline cluster `number`."""
    cluster = _clusters.get(number)
    if cluster is None or name not in cluster.remotes:
        raise ClusterError(f"the cluster of {name!r} is closed")
    return cluster.remotes[name]


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=1)


async def _next(items: AsyncIterator[Any], done: object) -> Any:
    return await anext(items, done)


def _answer(answer: Any, name: str, method: str) -> Any:
    if isinstance(answer, Failure):
        raise answer.exception(name, method)
    return _pickle_round_trip(answer)


def _pickle_round_trip(value: Any) -> Any:
    """Return a copy of the value, made by pickling and unpickling it as a real connection would."""
    return pickle.loads(pickle.dumps(value, protocol=5))


def _resolved(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with every StoredValue replaced by the value behind it."""

    def value_of(given: Any) -> Any:
        return given.value if isinstance(given, StoredValue) else given

    return tuple(map(value_of, args)), {name: value_of(given) for name, given in kwargs.items()}
