"""The ray backend: every service runs in a process of its own. Imports ray only once a cluster opens.

Invariants: ray listens on the loopback only and requires a token. A service is a named actor in the cluster's own
namespace, so any handle, in any process, finds it again after a restart. Every process is recorded (guardian.py) before
it serves, so none outlives the driver.

Ray ties its first processes to the life of the THREAD that starts them: open a cluster from a thread that lives on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.cluster import direct_calls, guardian
from etude.cluster.contract import Cluster, ClusterError, DeadlineExceeded, Health, Launch, ServiceDied
from etude.cluster.direct_calls import CallerConnection, ConnectionLost
from etude.cluster.extra_nodes import ExtraNode, node_name
from etude.cluster.failure import Failure
from etude.cluster.hosting import HostedService, ServiceSession, pickled_call, redirect_output
from etude.cluster.private_folder import end_guardian, private_folder, start_guardian
from etude.cluster.ray_environment import RAY_FOLDER, STORE_BYTES, TOKEN, prepare_environment, store_folder

MAX_CONCURRENCY = 10_000
"""Maximum number of calls that run at once in a service."""
JOIN_SECONDS = 60.0
"""Time limit in seconds for extra nodes to join the cluster."""


@dataclass(frozen=True, slots=True)
class _Spec:
    """Everything an actor needs to create its service; the same for each start of the service."""

    name: str
    service: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    env: dict[str, str]
    log: Path
    folder: Path


@dataclass(frozen=True, slots=True)
class _ServiceStart:
    """One start of a service: its process, and where it can be reached."""

    host: str
    who: str
    """Identity of the process: pid, start time and boot id, as in guardian.identity."""
    incarnation: int
    started: float
    failure: Failure | None
    socket_path: str
    """Path of the unix socket for direct calls from the same machine."""

    @property
    def pid(self) -> int:
        return int(self.who.split()[0])

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()


class _ServiceActor:
    def __init__(self, spec: _Spec, incarnation: int) -> None:
        guardian.record(spec.folder, os.getpid())
        redirect_output(spec.log)
        # Torch creates this folder whether it compiles or not; here it is removed with the cluster.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(spec.folder / "torch"))
        os.environ.update(spec.env)
        os.environ.pop(TOKEN, None)
        failure: Failure | None = None
        try:
            self._hosted = HostedService(spec.service, *_values_now(spec.args, spec.kwargs))
        except Exception as error:  # noqa: BLE001 - the boundary: `start` raises it in the caller
            failure = Failure.of(error)
        who = guardian.identity(os.getpid()) or ""
        socket_path = str(spec.folder / f"{os.getpid()}.sock")
        self._start = _ServiceStart(socket.gethostname(), who, incarnation, time.time(), failure, socket_path)
        self._opening = asyncio.Lock()
        self._server: asyncio.Server | None = None

    async def describe_start(self) -> _ServiceStart:
        """Open the socket for direct calls, unless it is open already, and return which process runs the service."""
        async with self._opening:
            if self._server is None and self._start.failure is None:
                self._server = await direct_calls.serve(self._start.socket_path, lambda: ServiceSession(self._hosted))
        return self._start

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await self._hosted.call(method, *await _values(args, kwargs))

    async def stream(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        async for item in self._hosted.stream(method, *await _values(args, kwargs)):
            yield item


class RayRemote:
    def __init__(self, name: str, namespace: str, spec: Any, cpus: float, node: str = "") -> None:
        """`spec` is ray's reference to a stored _Spec, `node` ray's id of the node to run on; empty: any node."""
        self._name, self._namespace, self._spec, self._cpus, self._node = name, namespace, spec, cpus, node
        self._actor: Any = None
        self._start: _ServiceStart | None = None
        self._connection: CallerConnection | None = None
        self._opening = asyncio.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_actor": None, "_connection": None, "_opening": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opening=asyncio.Lock())

    def __del__(self) -> None:
        if self._connection is not None:
            self._connection.drop()

    @property
    def name(self) -> str:
        return self._name

    async def call(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> Any:
        until, submitted = time.monotonic() + deadline, time.time()
        try:
            answer = await self._await_answer(self._answer(method, args, kwargs), method, deadline)
        except ServiceDied:
            # This handle had not noticed a restart: the call never reached a process, so it may be sent again.
            if not await self._started_before(submitted, until):
                raise
            left = max(until - time.monotonic(), 0.001)
            answer = await self._await_answer(self._answer(method, args, kwargs), method, left)
        return self._result(answer, method)

    async def stream(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> AsyncIterator[Any]:
        import ray

        if not await self._refresh(deadline):
            raise ServiceDied(f"{self._name} is dead; it was asked for {method}")
        streaming = self._find_actor(method).stream.options(num_returns="streaming")
        items = _submit(streaming, method, args, kwargs)
        ended = False
        try:
            while True:
                try:
                    item = await self._await_answer(_next(items), method, deadline)
                except StopAsyncIteration:
                    ended = True
                    return
                yield self._result(item, method)
        finally:
            if not ended:
                ray.cancel(items)

    async def health(self, *, deadline: float = 5.0) -> Health:
        try:
            alive = await self._refresh(deadline)
            detail = "no process answers to this name"
        except DeadlineExceeded as late:
            alive, detail = False, str(late)
        start = self._start
        if not alive or start is None:
            pid, incarnation, here = (start.pid, start.incarnation, start.here) if start else (None, 0, False)
            return Health(False, pid, incarnation, 0.0, detail, here)
        seconds_up = max(time.time() - start.started, 0.0)
        return Health(True, start.pid, start.incarnation, seconds_up, here=start.here)

    async def restart(self, *, deadline: float) -> None:
        until = time.monotonic() + deadline
        await self.health(deadline=min(1.0, deadline))
        await self.kill()
        await self._launch((self._start.incarnation if self._start else 0) + 1, until)

    async def kill(self) -> None:
        import ray

        try:
            actor = self._actor or ray.get_actor(self._name, namespace=self._namespace)
            ray.kill(actor, no_restart=True)
        except ValueError:
            pass  # no such actor: already dead
        self._actor = None
        start = self._start
        if start is None or not start.here:
            return
        guardian.kill(start.who)
        until = time.monotonic() + 5
        while guardian.alive(start.who) and time.monotonic() < until:  # noqa: ASYNC110 - another process's end
            await asyncio.sleep(0.01)

    async def _launch(self, incarnation: int, until: float) -> None:
        import ray

        deadline = until - time.monotonic()
        options = {
            "name": self._name,
            "namespace": self._namespace,
            "lifetime": "detached",
            "num_cpus": self._cpus,
            "max_concurrency": MAX_CONCURRENCY,
            "max_restarts": 0,
        }
        if self._node:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self._node, soft=False)
        while True:
            try:
                self._actor = ray.remote(_ServiceActor).options(**options).remote(self._spec, incarnation)
                break
            except ValueError as error:  # the name still belongs to the actor just killed
                if time.monotonic() > until:
                    raise ClusterError(f"there is already a service called {self._name!r}") from error
                await asyncio.sleep(0.02)
        try:
            self._start = start = await self._await_answer(self._actor.describe_start.remote(), "__init__", deadline)
        except DeadlineExceeded as late:
            await self.kill()
            raise DeadlineExceeded(f"{late}; it asked for {self._cpus:g} cpus, are they free?") from None
        if start.failure is not None:
            await self.kill()
            raise start.failure.exception(self._name, "__init__")

    async def _answer(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the service and return the answer. The call goes through ray if the service is on another
        machine or an argument is a reference from `RayCluster.put`, otherwise over the direct connection."""
        from ray import ObjectRef

        stored = any(isinstance(value, ObjectRef) for value in (*args, *kwargs.values()))
        connection = None if stored else await self._direct_connection(method)
        if connection is None:
            return await _submit(self._find_actor(method).call, method, args, kwargs)
        return pickle.loads(await connection.ask(pickled_call(method, args, kwargs)))

    async def _direct_connection(self, method: str) -> CallerConnection | None:
        """Return a connection to the current process of the service; None if it is on another machine."""
        async with self._opening:
            connection = self._connection
            if connection is not None and not connection.lost and connection.loop is asyncio.get_running_loop():
                return connection
            if connection is not None or self._actor is None or self._start is None:
                self._start = await self._find_actor(method).describe_start.remote()
            self._connection = await CallerConnection.open(self._start.socket_path) if self._start.here else None
            return self._connection

    def _find_actor(self, method: str) -> Any:
        """Return ray's handle of the service's actor. Raise ServiceDied if there is no such actor."""
        import ray

        if not ray.is_initialized():  # otherwise get_actor would start a new cluster
            raise ServiceDied(f"{self._name} is gone with its cluster; it was asked for {method}")
        if self._actor is None:
            try:
                self._actor = ray.get_actor(self._name, namespace=self._namespace)
            except ValueError:
                raise ServiceDied(f"{self._name} is dead; it was asked for {method}") from None
        return self._actor

    async def _started_before(self, moment: float, until: float) -> bool:
        """Whether the service is alive and was started before `moment`, given as Unix time."""
        self._actor = None
        alive = await self._refresh(max(until - time.monotonic(), 0.001))
        return alive and self._start is not None and self._start.started < moment

    async def _refresh(self, deadline: float) -> bool:
        """Ask which process runs the service now, looking up its actor again if need be; return whether one does."""
        for _ in range(2):
            try:
                actor = self._find_actor("describe_start")
                self._start = await self._await_answer(actor.describe_start.remote(), "describe_start", deadline)
                return True
            except ServiceDied:
                self._actor = None
        return False

    async def _await_answer(self, answer: Awaitable[Any], method: str, deadline: float) -> Any:
        """Await an answer until the deadline, turning ray's errors into the exceptions of contract.py."""
        from ray import exceptions

        try:
            async with asyncio.timeout(deadline):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(f"{self._name}.{method} did not answer within {deadline:g} s") from None
        except ConnectionLost as error:
            self._actor = None
            raise ServiceDied(f"{self._name} died; it was asked for {method} ({error})") from error
        except exceptions.RayActorError as error:
            self._actor = None
            reason = str(error).strip().splitlines()[0]
            raise ServiceDied(f"{self._name} died; it was asked for {method} ({reason})") from error
        except exceptions.RayTaskError as error:
            raise Failure.of(error).exception(self._name, method) from error
        except exceptions.RayError as error:
            raise ClusterError(f"{self._name}.{method}: {error}") from error

    def _result(self, answer: Any, method: str) -> Any:
        if isinstance(answer, Failure):
            raise answer.exception(self._name, method)
        return answer


class RayCluster(Cluster):
    def __init__(self, folder: Path, logs: Path, namespace: str, watcher: subprocess.Popen[bytes]) -> None:
        """`folder` is the cluster's private folder, and `watcher` its guardian process."""
        self._folder, self._logs, self._namespace, self._watcher = folder, logs, namespace, watcher
        self._remotes: dict[str, RayRemote] = {}
        self._extra_nodes: dict[str, ExtraNode] = {}
        self._cpus = 1
        """Number of cores that the services of one node may request together."""
        self._closed = False

    @classmethod
    def open(cls, run_folder: Path, cpus: int | None) -> RayCluster:
        """Start ray and open a cluster. Blocks for two to three seconds. Call it from a thread that outlives the
        cluster, since ray's first processes end with the thread that starts them."""
        prepare_environment()
        import ray

        if ray.is_initialized():
            raise ClusterError("this process has a ray cluster open already; close it first")
        logs = run_folder.absolute() / "logs"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = private_folder()
        watcher = start_guardian(folder)
        terminate = signal.getsignal(signal.SIGTERM)
        cpus = cpus or len(os.sched_getaffinity(0))
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                resources={node_name(0): 1},
                num_gpus=None,
                namespace=folder.name,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=STORE_BYTES,
                _temp_dir=str(folder / RAY_FOLDER),
                _node_ip_address="127.0.0.1",
                _plasma_directory=store_folder(folder),
            )
        except (OSError, RuntimeError, ValueError) as error:
            watcher.kill()
            guardian.sweep(folder)
            raise ClusterError(f"ray did not start: {error}") from error
        finally:
            os.environ.pop(TOKEN, None)
            if signal.getsignal(signal.SIGTERM) is not terminate:
                signal.signal(signal.SIGTERM, terminate)
        cluster = cls(folder, logs, folder.name, watcher)
        cluster._cpus = cpus
        return cluster

    async def add_nodes(self, more: int) -> RayCluster:
        """Add `more` nodes on this machine. Return self once they have joined."""
        import ray

        address = ray.get_runtime_context().gcs_address
        try:
            for number in range(1, more + 1):
                node = ExtraNode(number, address, self._cpus, self._folder)
                self._extra_nodes[node.name] = node
            until = time.monotonic() + JOIN_SECONDS
            while len(there := await self.nodes()) <= more:
                if time.monotonic() > until:
                    raise ClusterError(f"{more + 1} nodes should be there after {JOIN_SECONDS:g} s, not only {there}")
                await asyncio.sleep(0.05)
        except BaseException:
            await self.close()
            raise
        return self

    async def nodes(self) -> list[str]:
        return sorted(self._node_ids(), key=lambda name: (name != node_name(0), name))

    def _node_ids(self) -> dict[str, str]:
        """Return a mapping from the name of each living node to ray's id of it. The name is the node's resource
        "node-...", or ray's id if the node has no such resource."""
        import ray

        living = [node for node in ray.nodes() if node["Alive"]]
        return {next((r for r in n["Resources"] if r.startswith("node-")), n["NodeID"]): n["NodeID"] for n in living}

    async def lose_node(self, node: str) -> None:
        if node not in self._extra_nodes:
            raise ClusterError(f"no node {node!r} that may be lost; there are {', '.join(self._extra_nodes) or 'none'}")
        await asyncio.to_thread(self._extra_nodes.pop(node).lose)

    async def launch(self, wanted: Launch, *, deadline: float) -> RayRemote:
        import ray

        name, node = wanted.name, wanted.node
        if name in self._remotes:
            raise ClusterError(f"there is already a service called {name!r}")
        nodes = self._node_ids() if node else {"": ""}
        if node not in nodes:
            raise ClusterError(f"no node {node!r}; there are {', '.join(nodes)}")
        given = (wanted.service, wanted.args, wanted.kwargs, wanted.env)
        spec = _Spec(name, *given, self._logs / f"{name}.log", self._folder)
        remote = RayRemote(name, self._namespace, ray.put(spec), wanted.cpus, nodes[node])
        await remote._launch(1, time.monotonic() + deadline)
        self._remotes[name] = remote
        return remote

    async def put(self, value: Any) -> Any:
        import ray

        return ray.put(value)

    async def get(self, reference: Any, *, deadline: float) -> Any:
        try:
            async with asyncio.timeout(deadline):
                return await reference
        except TimeoutError:
            raise DeadlineExceeded(f"a stored value did not come within {deadline:g} s") from None

    async def close(self) -> None:
        import ray

        if self._closed:
            return
        self._closed = True
        for remote in self._remotes.values():
            await remote.kill()
        ray.shutdown()
        for node in self._extra_nodes.values():
            await asyncio.to_thread(node.lose)
        left = await asyncio.to_thread(end_guardian, self._watcher, self._folder)
        if left:
            raise ClusterError(f"processes that would not end: {', '.join(who.split()[0] for who in left)}")


def _submit(method: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Submit a call to a method of a ray actor. Raise ClusterError if its arguments cannot be sent."""
    try:
        return method.remote(name, args, kwargs)
    except (TypeError, AttributeError) as error:
        raise ClusterError(f"the arguments of {name} cannot be sent: {error}") from error


async def _next(items: Any) -> Any:
    return await (await anext(items))


async def _values(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with every ray reference replaced by the value stored under it."""
    from ray import ObjectRef

    got = [await value if isinstance(value, ObjectRef) else value for value in args]
    named = {key: await value if isinstance(value, ObjectRef) else value for key, value in kwargs.items()}
    return tuple(got), named


def _values_now(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with ray's references replaced by their values; blocks until all are there."""
    import ray

    got = tuple(ray.get(value) if isinstance(value, ray.ObjectRef) else value for value in args)
    return got, {key: ray.get(value) if isinstance(value, ray.ObjectRef) else value for key, value in kwargs.items()}
