"""The backend for one machine: every service runs in a process of its own, started by a fork server (fork_server.py).

Invariants: the only sockets that listen are unix sockets in the cluster's private folder. Every process is recorded
(guardian.py) before it serves, so none outlives the driver. A handle can be sent to any process of the machine, and
finds the service again after a restart.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.cluster import guardian
from etude.cluster.contract import Cluster, ClusterError, DeadlineExceeded, Health, Launch, ServiceDied
from etude.cluster.direct_calls import BACKLOG, CallerConnection, ConnectionLost
from etude.cluster.failure import Failure
from etude.cluster.fork_server import COMMAND, CONTROL, ServiceProcess, ServiceSpec, framed
from etude.cluster.hosting import END_OF_STREAM, NEXT_ITEM, OPEN_STREAM, PING, pickled_call
from etude.cluster.kernel_kills import KernelKills
from etude.cluster.node_names import NodeNames
from etude.cluster.private_folder import end_guardian, private_folder, start_guardian

CLEAN_UP_SECONDS = 5.0
"""How long a handle waits until the fork server has killed or forgotten a service."""
DEFAULTS = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Environment variables of the fork server and its services, unless the driver has them set. Many services share the
machine's cores, so one that computes sets its own number of threads. Pyarrow must not start a thread before a fork."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StoredValue:
    """A value stored by `ProcessCluster.put`. A process that receives this as an argument receives the value itself.
    The file is deleted once nothing in the driver refers to this any more."""

    path: Path

    def __reduce__(self) -> Any:
        return _load, (self.path,)


class ProcessRemote:
    def __init__(self, name: str, folder: Path) -> None:
        """`folder` is the cluster's private folder."""
        self._name, self._folder = name, folder
        self._process: ServiceProcess | None = None
        """The process of the service that the last call through this handle reached."""
        self._connection: CallerConnection | None = None
        self._opening = asyncio.Lock()
        self._kills = KernelKills.count()

    def __reduce__(self) -> Any:
        return ProcessRemote, (self._name, self._folder)

    def __del__(self) -> None:
        if self._connection is not None:
            self._connection.drop()

    @property
    def name(self) -> str:
        return self._name

    async def call(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> Any:
        sent, submitted = pickled_call(method, args, kwargs), time.monotonic()
        async with self._errors_named(method, deadline):
            try:
                answer = await self._ask(sent)
            except ConnectionLost:
                # This handle had not noticed a restart: the call never reached a process, so it may be sent again.
                now = await self._find()
                if now is None or now.started > submitted:
                    raise
                answer = await self._ask(sent)
        return self._result(answer, method)

    async def stream(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> AsyncIterator[Any]:
        sent = OPEN_STREAM + pickled_call(method, args, kwargs)
        async with self._errors_named(method, deadline):
            connection = await CallerConnection.open((await self._alive()).socket_path)
        try:
            async with self._errors_named(method, deadline):
                self._result(await connection.ask(sent), method)
            while True:
                async with self._errors_named(method, deadline):
                    item = await connection.ask(NEXT_ITEM)
                if item == END_OF_STREAM:
                    return
                yield self._result(item, method)
        finally:
            connection.close()

    async def health(self, *, deadline: float = 5.0) -> Health:
        try:
            async with self._errors_named("health", deadline):
                await self._ask(PING)
        except (ServiceDied, DeadlineExceeded) as error:
            pid, incarnation = (self._process.pid, self._process.incarnation) if self._process else (None, 0)
            return Health(False, pid, incarnation, 0.0, str(error))
        assert self._process is not None
        process = self._process
        return Health(True, process.pid, process.incarnation, time.monotonic() - process.started)

    async def restart(self, *, deadline: float) -> None:
        async with self._errors_named("__init__", deadline):
            self._process, self._connection = await request(self._folder, "restart", self._name), None
            await self._constructed()

    async def kill(self) -> None:
        await self._kill("")

    async def start(self, spec: ServiceSpec, *, deadline: float) -> None:
        """Start the service. If its constructor fails or is late, its name becomes free again."""
        try:
            async with self._errors_named("__init__", deadline):
                self._process = await request(self._folder, "start", spec)
                await self._constructed()
        except BaseException:
            with suppress(TimeoutError, ConnectionLost):
                async with asyncio.timeout(CLEAN_UP_SECONDS):
                    await request(self._folder, "forget", self._name, spec.start_id)
            raise

    async def _kill(self, who: str) -> None:
        """Kill the service's process, or only the process with the identity `who`, if one is given."""
        try:
            async with asyncio.timeout(CLEAN_UP_SECONDS):
                await request(self._folder, "kill", self._name, who)
        except (TimeoutError, ConnectionLost):
            # The fork server is busy or dead, or the cluster is closed.
            if self._process is not None:
                guardian.kill(self._process.who)

    async def _constructed(self) -> None:
        """Wait until the service's constructor has finished. Kill the process if the constructor fails or is late."""
        assert self._process is not None
        started = self._process.who
        try:
            self._result(await self._ask(PING), "__init__")
        except BaseException:
            await self._kill(started)
            raise

    async def _ask(self, sent: bytes) -> bytes:
        return await (await self._connect()).ask(sent)

    async def _connect(self) -> CallerConnection:
        async with self._opening:
            connection = self._connection
            if connection is None or connection.lost or connection.loop is not asyncio.get_running_loop():
                self._process, self._kills = await self._alive(), KernelKills.count()
                self._connection = connection = await CallerConnection.open(self._process.socket_path)
            return connection

    async def _alive(self) -> ServiceProcess:
        """Return the service's current process. Raise ConnectionLost if it has none."""
        process = await self._find()
        if process is None:
            raise ConnectionLost("it has no process")
        return process

    async def _find(self) -> ServiceProcess | None:
        found: ServiceProcess | None = await request(self._folder, "find", self._name)
        return found

    @asynccontextmanager
    async def _errors_named(self, method: str, deadline: float) -> AsyncIterator[None]:
        """Limit the time of a call, and raise ServiceDied or DeadlineExceeded, naming service and method, if it gets no
        answer."""
        try:
            async with asyncio.timeout(deadline):
                yield
        except TimeoutError:
            raise DeadlineExceeded(f"{self._name}.{method} did not answer within {deadline:g} s") from None
        except ConnectionLost as error:
            why = f"{error}: {killed}" if (killed := self._kills.since()) else str(error)
            raise ServiceDied(f"{self._name} died; it was asked for {method} ({why})") from error

    def _result(self, answer: bytes, method: str) -> Any:
        value = pickle.loads(answer)
        if isinstance(value, Failure):
            raise value.exception(self._name, method)
        return value


class ProcessCluster(Cluster):
    """A cluster of processes on this machine. Its nodes are groups of services that can be lost together."""

    def __init__(self, run_folder: Path, nodes: int) -> None:
        """Start the fork server, which starts services, and the guardian, which kills them when the driver is gone."""
        self._logs = run_folder.absolute() / "logs"
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._nodes = NodeNames(nodes)
        self._stored = 0
        self._kept: list[StoredValue] = []
        """Stored values among the arguments of constructors, kept because a restart loads them again."""
        self._closed = False
        self._folder = private_folder()
        self._watcher = start_guardian(self._folder)
        control = self._folder / CONTROL
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(control))
            listener.listen(BACKLOG)
            with (self._logs / "fork-server.log").open("a") as log:
                self._server = subprocess.Popen(
                    [*COMMAND, "serve", str(control), str(listener.fileno()), json.dumps(sys.path)],
                    env={**DEFAULTS, **os.environ, guardian.FOLDER: f"{self._folder}/"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(listener.fileno(),),
                    start_new_session=True,
                )

    async def nodes(self) -> list[str]:
        return list(self._nodes.living)

    async def lose_node(self, node: str) -> None:
        self._nodes.lose(node)
        try:
            await request(self._folder, "lose_node", node)
        except ConnectionLost as error:
            raise ClusterError(f"{node} cannot be lost: {error}") from error

    async def launch(self, wanted: Launch, *, deadline: float) -> ProcessRemote:
        """Start a service. `wanted.cpus` is ignored: the machine's scheduler shares the cores among all services."""
        node = self._nodes.chosen(wanted.node)
        try:
            arguments = pickle.dumps((wanted.args, wanted.kwargs), pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ClusterError(f"the arguments of {wanted.name} cannot be sent: {error}") from error
        log = self._logs / f"{wanted.name}.log"
        spec = ServiceSpec(wanted.name, wanted.service, arguments, node, wanted.env, log, secrets.token_hex(8))
        remote = ProcessRemote(wanted.name, self._folder)
        await remote.start(spec, deadline=deadline)
        given = (*wanted.args, *wanted.kwargs.values())
        self._kept += [value for value in given if isinstance(value, StoredValue)]
        return remote

    async def put(self, value: Any) -> StoredValue:
        self._stored += 1
        path = self._folder / f"{self._stored}.value"
        path.write_bytes(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        stored = StoredValue(path)
        weakref.finalize(stored, path.unlink, missing_ok=True).atexit = False
        return stored

    async def get(self, reference: StoredValue, *, deadline: float) -> Any:
        return _load(reference.path)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._server.kill()
        self._server.wait()
        left = await asyncio.to_thread(end_guardian, self._watcher, self._folder)
        if left:
            raise ClusterError(f"processes that would not end: {', '.join(who.split()[0] for who in left)}")


async def request(folder: Path, method: str, *args: Any) -> Any:
    """Call a public method of the ForkServer by name, over its socket, and return the result."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(folder / CONTROL))
        try:
            writer.write(framed(pickle.dumps((method, args))))
            length = int.from_bytes(await reader.readexactly(8))
            answer = pickle.loads(await reader.readexactly(length))
        finally:
            writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        raise ConnectionLost(f"its cluster is gone, perhaps logs/fork-server.log says why: {error}") from error
    if isinstance(answer, ClusterError):
        raise answer
    if isinstance(answer, Failure):
        raise answer.exception("the fork server", method)
    return answer


def _load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())
