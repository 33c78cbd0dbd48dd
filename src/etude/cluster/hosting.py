"""Runs the methods of a service inside its process.

- `async def` methods run on the event loop, any number at once.
- `def` methods run in the service's single worker thread, one after another: a plain class needs no locks, and a long
  step does not block the loop. A method that must answer during such a step has to be an `async def`.
- async generators are streams, and run on the event loop too.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import inspect
import os
import pickle
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from etude.cluster.contract import ClusterError
from etude.cluster.failure import Failure


class HostedService:
    """A service object, and the worker thread that runs its blocking methods."""

    def __init__(self, service: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._object = find_service(service)(*args, **kwargs)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=service.rpartition(":")[2])

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a method of the service. Return its result, or a Failure if it raised."""
        try:
            function = self._method(method)
            if inspect.isasyncgenfunction(function):
                raise ClusterError(f"{method} is a stream: use stream()")
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, lambda: function(*args, **kwargs))
        except (Exception, asyncio.CancelledError) as error:  # the boundary: whatever it is, the caller gets it
            if _is_stopped():
                raise
            return Failure.of(error)

    async def reply(self, pickled: bytes) -> bytes:
        """Run a pickled call. The answer is a pickled Failure if the call or its result cannot be pickled."""
        try:
            method, args, kwargs = pickle.loads(pickled)
            return pickle.dumps(await self.call(method, args, kwargs), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, the caller gets it
            return pickle.dumps(Failure.of(error))

    async def stream(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield the items of an async generator method. If the method raises, the last item is a Failure."""
        try:
            function = self._method(method)
            if not inspect.isasyncgenfunction(function):
                raise ClusterError(f"{method} is not an async generator: use call()")
            async for item in function(*args, **kwargs):
                yield item
        except (Exception, asyncio.CancelledError) as error:  # the boundary: whatever it is, the caller gets it
            if _is_stopped():
                raise
            yield Failure.of(error)

    def close(self) -> None:
        """End the worker thread without waiting for the method that it runs. Queued methods are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _method(self, method: str) -> Any:
        function = None if method.startswith("_") else getattr(self._object, method, None)
        if not callable(function):
            raise ClusterError(f"{type(self._object).__qualname__} has no public method {method!r}")
        return function


def _is_stopped() -> bool:
    """Whether the current call is being cancelled. If not, a CancelledError came from the service's method itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


OPEN_STREAM, NEXT_ITEM, PING = b"stream", b"next", b"ping"
"""First bytes of the requests that are not calls. OPEN_STREAM opens a stream, and the pickled call follows it.
NEXT_ITEM asks for the stream's next item. PING only asks for an answer. No pickled call begins with these bytes."""
DONE = pickle.dumps(None)
END_OF_STREAM = b""
"""The answer to a request for a stream's next item (NEXT_ITEM) once there are no more items."""


class ServiceSession:
    """One connection to a service. It carries any number of calls, or one stream, which ends with the connection."""

    def __init__(self, hosted: HostedService) -> None:
        self._hosted = hosted
        self._items: AsyncGenerator[Any, None] | None = None
        self._pulling: asyncio.Task[bytes] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def reply(self, body: bytes) -> bytes:
        """Return the pickled answer to a request: a pickled call, or PING, OPEN_STREAM or NEXT_ITEM."""
        if body == PING:
            return DONE
        if body == NEXT_ITEM:
            assert self._items is not None
            self._pulling = asyncio.create_task(_pickled_item(self._items))
            return await self._pulling
        if not body.startswith(OPEN_STREAM):
            return await self._hosted.reply(body)
        try:
            self._items = self._hosted.stream(*pickle.loads(body[len(OPEN_STREAM) :]))
        except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, the caller gets it
            return pickle.dumps(Failure.of(error))
        return DONE

    def end(self) -> None:
        """Close the stream of this connection, if there is one, even while the stream waits for its next item."""
        if self._pulling is not None and not self._pulling.done():
            self._pulling.cancel()
        elif self._items is not None:
            self._closing = asyncio.create_task(self._items.aclose())


async def _pickled_item(items: AsyncGenerator[Any, None]) -> bytes:
    try:
        return pickle.dumps(await anext(items), pickle.HIGHEST_PROTOCOL)
    except StopAsyncIteration:
        return END_OF_STREAM
    except Exception as error:  # noqa: BLE001 - the boundary: an item that cannot be pickled
        return pickle.dumps(Failure.of(error))


def pickled_call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a call as bytes. Raise ClusterError if its arguments cannot be pickled."""
    try:
        return pickle.dumps((method, args, kwargs), pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ClusterError(f"the arguments of {method} cannot be sent: {error}") from error


def redirect_output(log: Path) -> None:
    """Append everything that this process writes to stdout and stderr to a log file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()


def find_service(service: str) -> Any:
    module, separator, name = service.partition(":")
    if not separator or not module or not name:
        raise ClusterError(f"a service is named package.module:Class, found {service!r}")
    found = getattr(importlib.import_module(module), name, None)
    if not inspect.isclass(found):
        raise ClusterError(f"module {module} has no class {name}")
    return found
