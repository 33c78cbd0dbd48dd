"""The fork server: a process that starts services by forking itself. It imports each service's module once, before the
fork, so that a start takes milliseconds.

The fork server knows every service of its cluster by name. Any process with a handle can ask it for a service's current
process, or to start the service again. It runs no service itself, and nothing of ours starts a thread in it.

A service with environment variables of its own gets a fresh interpreter instead of a plain fork, since libraries read
their variables when they are imported.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import pickle
import selectors
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
    "-P",
    "-c",
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from etude.cluster import fork_server as f; f.main()",
)
"""Command line that runs `main` in a new interpreter; the arguments that `main` describes are appended to it. It uses
`-c`, because `-m` would name this module `__main__`. Pickles would then refer to its classes by that name, under which
other processes do not find them. With `-P` the current folder is not searched for modules."""
CONTROL = "control.sock"
"""Name of the fork server's socket in the cluster's folder."""
ANSWER_SECONDS = 10.0
"""Seconds within which a client must take the fork server's answer."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """Everything needed to start a service; the same for each restart."""

    name: str
    service: str
    arguments: bytes
    """The pickled (args, kwargs) of the service's constructor."""
    node: str
    env: dict[str, str]
    log: Path
    start_id: str
    """Random id of the first start, so that undoing a failed start never removes another service of the same name."""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One start of a service: its process, and the socket where it can be reached."""

    who: str
    """Identity of the process: pid, start time and boot id, as in guardian.identity."""
    incarnation: int
    started: float
    """When the process was forked, on the machine's monotonic clock."""
    socket_path: str

    @property
    def pid(self) -> int:
        return int(self.who.split()[0])


class ForkServer:
    """The services of one cluster. Every public method but `serve` answers a request of processes.py."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        self._folder, self._listener = folder, listener
        self._specs: dict[str, ServiceSpec] = {}
        self._processes: dict[str, ServiceProcess] = {}
        """The latest process of each service, alive or dead, by name."""
        self._forgotten: set[str] = set()
        """Ids of first starts that were given up. A request for such a start may still arrive; it is refused."""
        self._lost: set[str] = set()
        self._requests: dict[socket.socket, bytearray] = {}
        self._sockets = 0

    def serve(self) -> None:
        """Answer requests until this process is killed: each once it is complete, so no slow sender holds up the
        rest."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is self._listener:
                        connection = self._listener.accept()[0]
                        self._requests[connection] = bytearray()
                        ready.register(connection, selectors.EVENT_READ)
                    elif isinstance(key.fileobj, socket.socket) and self._read(key.fileobj):
                        ready.unregister(key.fileobj)
                        key.fileobj.close()

    def start(self, spec: ServiceSpec) -> ServiceProcess:
        """Start a new service. Return at once, while its constructor may still be running."""
        if spec.name in self._specs:
            raise ClusterError(f"there is already a service called {spec.name!r}")
        if spec.start_id in self._forgotten:
            raise ClusterError(f"the start of {spec.name} was given up")
        process = self._fork(spec, 1)
        self._specs[spec.name] = spec
        return process

    def restart(self, name: str) -> ServiceProcess:
        self.kill(name)
        return self._fork(self._specs[name], self._processes[name].incarnation + 1)

    def find(self, name: str) -> ServiceProcess | None:
        known = self._processes.get(name)
        return known if known is not None and guardian.alive(known.who) else None

    def kill(self, name: str, who: str = "") -> None:
        """Kill a service's process, and return once it is gone. If `who` is given, only the process with this identity
        is killed, not one that has replaced it."""
        known = self._processes.get(name)
        if known is not None and guardian.alive(known.who) and who in ("", known.who):
            guardian.kill(known.who)
            try:
                os.waitpid(known.pid, 0)
            except ChildProcessError:  # Forked by a process that `_import` has replaced.
                while guardian.alive(known.who):
                    time.sleep(0.001)

    def forget(self, name: str, start_id: str) -> None:
        """Kill a service whose first start failed or was given up, so that its name is free again."""
        self._forgotten.add(start_id)
        if name in self._specs and self._specs[name].start_id == start_id:
            self.kill(name)
            del self._specs[name], self._processes[name]

    def lose_node(self, node: str) -> None:
        """Kill every service of a node with all that it has started, as a power cut would."""
        self._lost.add(node)
        for name, spec in self._specs.items():
            if spec.node == node:
                below: list[psutil.Process] = []
                with suppress(psutil.NoSuchProcess):
                    below = psutil.Process(self._processes[name].pid).children(recursive=True)
                self.kill(name)
                for process in below:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()

    def _read(self, connection: socket.socket) -> bool:
        """Read what a client has sent, and answer its request if complete. Return whether to close the connection."""
        request = self._requests[connection]
        with suppress(OSError):
            data = connection.recv(1 << 20)
            request += data
            if data and len(request) - 8 < int.from_bytes(request[:8]):
                return False
            if data:
                connection.settimeout(ANSWER_SECONDS)
                connection.sendall(framed(pickle.dumps(self._answer(bytes(request[8:])))))
        del self._requests[connection]
        return True

    def _answer(self, request: bytes) -> Any:
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
            _import(spec.service.partition(":")[0])
        if spec.name in self._processes:
            Path(self._processes[spec.name].socket_path).unlink(missing_ok=True)
        self._sockets += 1
        path = str(self._folder / f"{self._sockets}.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(direct_calls.BACKLOG)
        gc.freeze()  # The collector of a fork would otherwise write to, and so copy, every page.
        pid = os.fork()
        if pid == 0:
            for inherited in (self._listener, *self._requests):
                inherited.close()
            _become_service(spec, self._folder, listener)
        listener.close()
        who = guardian.identity(pid) or f"{pid} 0 ended"
        process = ServiceProcess(who, incarnation, time.monotonic(), path)
        self._processes[spec.name] = process
        return process


def _import(module: str) -> None:
    """Import a module for all services to come. Some modules end the process that imports them, by a crash or
    os._exit: then a copy of this process, forked before, takes its place, and the start of the service fails."""
    if module in sys.modules:
        return
    imported, done = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(done)
        if os.read(imported, 1):
            os._exit(0)
        os.close(imported)
        raise ClusterError(f"the process that imported {module} ended; perhaps logs/fork-server.log says why")
    os.close(imported)
    gc.disable()  # An import makes hardly any garbage, and to look for it takes a tenth of the import's time.
    # What raises here, even SystemExit, raises again in the service, which reports it.
    with suppress(BaseException):
        importlib.import_module(module)
    gc.enable()
    os.write(done, b"1")
    os.close(done)
    os.waitpid(copy, 0)


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
    """Construct the service and serve it until this process is killed. If the constructor raises, every call is
    answered with that exception."""
    # A service ends by being killed, and what it has buffered is lost then.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
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
    """Prefix the body of a request or an answer with its length, as 8 bytes."""
    return len(body).to_bytes(8) + body


def main() -> None:
    """Run the fork server, or one service in a fresh interpreter, as the command line says:

    - `COMMAND serve CONTROL FD PATHS` runs the fork server. CONTROL is the path of its socket.
    - `COMMAND service SPEC FD PATHS` runs a service. SPEC is the path of a file with its pickled ServiceSpec.

    COMMAND stands for this module's constant COMMAND. CONTROL and SPEC lie in the cluster's private folder, and so tell
    where that folder is. FD is the number of an inherited file descriptor: the socket on which the fork server or the
    service listens. PATHS is the driver's sys.path as JSON. The code in COMMAND sets sys.path to it, and removes it
    from the arguments, before it calls this function."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # waitpid fails where SIGCHLD is ignored, and this is inherited
    role, place, descriptor = sys.argv[1:]
    listener = socket.socket(fileno=int(descriptor))
    folder = Path(place).parent
    if role == "service":
        spec = pickle.loads(Path(place).read_bytes())
        Path(place).unlink()
        run_service(spec, folder, listener)
    ForkServer(folder, listener).serve()


if __name__ == "__main__":
    main()
