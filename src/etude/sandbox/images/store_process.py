"""The store process: a process in a user namespace of the caller's subordinate ids, which is needed to write trees that
belong to such ids.

The decorator `in_store_process` marks every function of a store that writes, reads or removes trees. Callers call such
a function as usual. For a store of subordinate ids, the function runs in the store process, in a separate child for
each call. The store process starts at the first such call and ends with its owner's process, together with its
children.
"""

from __future__ import annotations

import functools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from etude.sandbox.contract import SandboxLost, SandboxUnavailable
from etude.sandbox.images.ids import IdRange
from etude.sandbox.light_python import light_command

P = ParamSpec("P")
T = TypeVar("T")
READY = b"ready"
_START_SECONDS, _END_SECONDS = 20.0, 5.0


class HasStoreProcess(Protocol):
    """An object whose functions marked `in_store_process` run in `process`, or in the caller if that is None."""

    process: StoreProcess | None


Store = TypeVar("Store", bound=HasStoreProcess)
StoreWork = Callable[Concatenate[Store, P], T]


def in_store_process(work: StoreWork[Store, P, T]) -> StoreWork[Store, P, T]:
    """Decorator: run the function in the store process, if there is one. Arguments, result and exceptions are pickled.
    Only the callback `say` is called in the caller's process."""

    @functools.wraps(work)
    def in_process_or_here(store: Store, *args: P.args, **kwargs: P.kwargs) -> T:
        if store.process is None:
            return work(store, *args, **kwargs)
        return cast(T, store.process.call(work.__module__, work.__qualname__, args, kwargs))

    return cast("StoreWork[Store, P, T]", in_process_or_here)


class StoreProcess:
    """Starts and calls the store process of one store, for the process that opened the store."""

    def __init__(self, root: Path, owner: str, ids: IdRange) -> None:
        assert ids.subordinate is not None
        self._arguments = (str(root), owner, ids.count, *ids.subordinate)
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, module: str, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function in the store process. Raises SandboxLost if the store process, or its child for this call,
        was killed."""
        say = kwargs.pop("say", None)
        request = (module, function, args, kwargs, say is not None, Path.cwd(), dict(os.environ))
        ours, theirs = socket.socketpair()
        with ours, ours.makefile("rwb") as connection:
            with theirs:
                self._send_connection(theirs)
            with _loss_as_error(function):
                pickle.dump(request, connection)
                connection.flush()
            while True:
                with _loss_as_error(function):
                    kind, value = pickle.load(connection)
                if kind == "raised":
                    raise value
                if kind == "returned":
                    return value
                assert say is not None
                say(value)

    def _send_connection(self, connection: socket.socket) -> None:
        """Send one end of a connection to the store process. If the store process has died, start a new one."""
        with self._lock:
            for _ in range(2):
                if self._control is None:
                    self._start()
                assert self._control is not None
                try:
                    socket.send_fds(self._control, [b"call"], [connection.fileno()])
                    return
                except OSError:
                    self._end()
        raise SandboxLost("the process that writes the store's files dies repeatedly; try again")

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                light_command(
                    "etude.sandbox.images.store_process_main", "main", theirs.fileno(), *self._arguments, path=sys.path
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control = ours
        ours.settimeout(_START_SECONDS)
        try:
            answer = ours.recv(len(READY))
        except OSError:
            answer = b""
        if answer != READY:
            self._end()
            raise SandboxUnavailable(
                "the process that writes the store's files with your subordinate ids does not start; "
                "run `etude sandbox doctor`"
            )
        ours.settimeout(None)

    def close(self) -> None:
        """End the store process and all calls in progress. A later call of a function starts a new store process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        """Close the socket, which makes the store process end its children and itself, and wait until it has ended."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


@contextmanager
def _loss_as_error(function: str) -> Iterator[None]:
    """Convert exceptions of a broken connection in this block to SandboxLost."""
    try:
        yield
    except (EOFError, ConnectionError, pickle.UnpicklingError) as error:
        raise SandboxLost(f"the process that writes the store's files ended during {function}; try again") from error
