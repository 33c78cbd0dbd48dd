"""Starts services by forking: a process that has imported what they need once, so that a start takes milliseconds.

It knows every service of its cluster by name, so any process that has a handle can ask it for the current process of a
service, or to start it again. It stays single-threaded, and only its forks run services.

The module of a service is imported here before the fork. A service with environment variables of its own gets a fresh
interpreter instead, since libraries read theirs when they are imported.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import pickle
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from etude.cluster import direct_calls, guardian
from etude.cluster.contract import ClusterError
from etude.cluster.failure import Failure
from etude.cluster.hosting import HostedService, ServiceSession, redirect_output

COMMAND = (
    sys.executable,
    "-c",
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from etude.cluster import fork_server as f; f.main()",
)
"""Command of `main`. Not `-m`: pickles must name the classes of this module as every other process does."""
CONTROL = "control.sock"
"""Name of the fork server's socket in the cluster's folder."""
BACKLOG = 1024
"""Connections that may wait until a process accepts them."""
REQUEST_SECONDS = 10.0
"""How long the fork server waits for the rest of a request that has begun."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What every start of a service needs."""

    name: str
    service: str
    arguments: bytes
    """The constructor's pickled (args, kwargs)."""
    node: str
    env: dict[str, str]
    log: Path


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One start of a service: the process that serves, and where it can be reached."""

    spec: ServiceSpec
    who: str
    """Identity of the process: pid, start time and boot id, as in guardian.identity."""
    incarnation: int
    started: float
    socket_path: str

    @property
    def pid(self) -> int:
        return int(self.who.split()[0])


class ForkServer:
    """The services of one cluster. Every public method but `serve` answers a request of processes.py."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        self._folder, self._listener = folder, listener
        self._processes: dict[str, ServiceProcess] = {}
        """The latest process of each service, alive or dead, by name."""
        self._lost: set[str] = set()
        """Nodes that are lost."""
        self._connection = listener
        """The connection of the request that is being answered."""
        self._sockets = 0

    def serve(self) -> None:
        """Answer requests until this process is killed."""
        while True:
            self._connection = connection = self._listener.accept()[0]
            with connection, suppress(OSError, EOFError):
                connection.settimeout(REQUEST_SECONDS)
                request = read_frame(connection)
                connection.sendall(framed(pickle.dumps(self._answer(request))))

    def start(self, spec: ServiceSpec) -> ServiceProcess:
        """Start a new service. Return at once, while its constructor may still be running."""
        if spec.name in self._processes:
            raise ClusterError(f"there is already a service called {spec.name!r}")
        return self._fork(spec, 1)

    def restart(self, name: str) -> ServiceProcess:
        """Kill the service's process, if it lives, and start another one."""
        known = self._processes[name]
        self.kill(name)
        return self._fork(known.spec, known.incarnation + 1)

    def find(self, name: str) -> ServiceProcess | None:
        """Return the process of a service; None if it is dead."""
        known = self._processes.get(name)
        return known if known is not None and guardian.alive(known.who) else None

    def kill(self, name: str) -> None:
        """Kill a service's process, and return once it is gone."""
        known = self._processes.get(name)
        if known is not None and guardian.alive(known.who):
            os.kill(known.pid, signal.SIGKILL)
            os.waitpid(known.pid, 0)

    def forget(self, name: str) -> None:
        """Kill a service whose start failed, so that its name is free again."""
        self.kill(name)
        self._processes.pop(name, None)

    def lose_node(self, node: str) -> None:
        """Kill every service of a node with all that it has started, as a power cut would."""
        self._lost.add(node)
        for name, known in self._processes.items():
            if known.spec.node == node:
                below: list[psutil.Process] = []
                with suppress(psutil.NoSuchProcess):
                    below = psutil.Process(known.pid).children(recursive=True)
                self.kill(name)
                for process in below:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()

    def _answer(self, request: bytes) -> Any:
        """Return the answer to a request, or a Failure."""
        self._reap()
        try:
            method, args = pickle.loads(request)
            return getattr(self, method)(*args)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, the caller gets it
            return error if isinstance(error, ClusterError) else Failure.of(error)

    def _reap(self) -> None:
        """Collect the exit status of services that have ended, so that no zombie is left."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _fork(self, spec: ServiceSpec, incarnation: int) -> ServiceProcess:
        if spec.node in self._lost:
            raise ClusterError(f"{spec.name} cannot be started: its node {spec.node} is lost")
        if not spec.env:
            # What fails here, even with SystemExit, fails again in the service, which reports it.
            with suppress(BaseException):
                importlib.import_module(spec.service.partition(":")[0])
        self._sockets += 1
        path = str(self._folder / f"{self._sockets}.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(BACKLOG)
        gc.freeze()  # The collector of a fork would otherwise write to, and so copy, every page.
        pid = os.fork()
        if pid == 0:
            self._listener.close()
            self._connection.close()
            _become_service(spec, self._folder, listener)
        listener.close()
        who = guardian.identity(pid) or f"{pid} 0 ended"
        process = ServiceProcess(spec, who, incarnation, time.time(), path)
        self._processes[spec.name] = process
        return process


def _become_service(spec: ServiceSpec, folder: Path, listener: socket.socket) -> None:
    """Run the service in this process, a fresh fork; never returns."""
    try:
        guardian.record(folder, os.getpid())
        redirect_output(spec.log)
        if spec.env:
            listener.set_inheritable(True)
            os.environ.update(spec.env)
            stored = folder / f"{os.getpid()}.service"
            stored.write_bytes(pickle.dumps(replace(spec, env={})))
            arguments = ["service", str(stored), str(listener.fileno()), json.dumps(sys.path)]
            os.execv(sys.executable, [*COMMAND, *arguments])
        run_service(spec, folder, listener)
    except BaseException:  # noqa: BLE001 - nothing may unwind into the fork server's loop
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


def run_service(spec: ServiceSpec, folder: Path, listener: socket.socket) -> None:
    """Construct the service and serve it until this process is killed. Every call of a service whose constructor raised
    is answered by that exception."""
    # Torch creates this folder whether it compiles or not; here it is removed with the cluster.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "torch"))
    hosted: HostedService | Failure
    try:
        hosted = HostedService(spec.service, *pickle.loads(spec.arguments))
    except Exception as error:  # noqa: BLE001 - the boundary: the start raises it in the caller
        hosted = Failure.of(error)
    asyncio.run(_serve(hosted, listener))


async def _serve(hosted: HostedService | Failure, listener: socket.socket) -> None:
    served = hosted
    await direct_calls.serve(
        listener, lambda: FailedSession(served) if isinstance(served, Failure) else ServiceSession(served)
    )
    await asyncio.Event().wait()


class FailedSession:
    """Answers every call with the failure of the service's constructor."""

    def __init__(self, failure: Failure) -> None:
        self._failure = failure

    async def reply(self, body: bytes) -> bytes:
        return pickle.dumps(self._failure)

    def end(self) -> None:
        pass


def framed(body: bytes) -> bytes:
    """Return a request or an answer with its length before it."""
    return len(body).to_bytes(8) + body


def read_frame(connection: socket.socket) -> bytes:
    """Return the body of a frame. Raise EOFError if the connection ends before it is complete."""
    with connection.makefile("rb") as stream:
        head = stream.read(8)
        body = stream.read(int.from_bytes(head))
    if len(head) < 8 or len(body) < int.from_bytes(head):
        raise EOFError
    return body


def main() -> None:
    """`COMMAND serve CONTROL FD PATHS` runs the fork server, `COMMAND service SPEC FD PATHS` one service in a fresh
    interpreter. FD is the listening socket; PATHS, the driver's sys.path as JSON, is taken by COMMAND itself."""
    role, place, descriptor = sys.argv[1:]
    listener = socket.socket(fileno=int(descriptor))
    folder = Path(place).parent
    if role == "service":
        run_service(pickle.loads(Path(place).read_bytes()), folder, listener)
    ForkServer(folder, listener).serve()


if __name__ == "__main__":
    main()
