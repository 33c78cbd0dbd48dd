"""Runs the methods of a service inside its process.

- `async def` methods run on the event loop, any number at once.
- `def` methods run in the service's single worker thread, one after another: a plain class needs no locks, and a long
  step does not block the loop. A method that must answer meanwhile has to be an `async def`.
- async generators stream.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from etude.cluster.contract import ClusterError
from etude.cluster.failure import Failure


class HostedService:
    """A service object, and the thread for its blocking methods."""

    def __init__(self, service: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Construct the service that `service` names (package.module:Class)."""
        self._object = find_service(service)(*args, **kwargs)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=service.rpartition(":")[2])

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a method. Return its result, or a Failure."""
        try:
            function = self._method(method)
            if inspect.isasyncgenfunction(function):
                raise ClusterError(f"{method} is a stream: use stream()")
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, lambda: function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, the caller gets it
            return Failure.of(error)

    async def reply(self, pickled: bytes) -> bytes:
        """Run a pickled call and return the pickled answer. The answer is a Failure if either cannot be pickled or
        unpickled."""
        try:
            method, args, kwargs = pickle.loads(pickled)
            return pickle.dumps(await self.call(method, args, kwargs), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, the caller gets it
            return pickle.dumps(Failure.of(error))

    async def stream(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield a stream's items. If the stream fails, the last item is a Failure."""
        try:
            function = self._method(method)
            if not inspect.isasyncgenfunction(function):
                raise ClusterError(f"{method} is not an async generator: use call()")
            async for item in function(*args, **kwargs):
                yield item
        except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, the caller gets it
            yield Failure.of(error)

    def close(self) -> None:
        """Stop the worker thread after the method that it is running."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _method(self, method: str) -> Any:
        function = None if method.startswith("_") else getattr(self._object, method, None)
        if not callable(function):
            raise ClusterError(f"{type(self._object).__qualname__} has no public method {method!r}")
        return function


def pickled_call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a call as bytes. Raise ClusterError if its arguments cannot be pickled."""
    try:
        return pickle.dumps((method, args, kwargs), pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ClusterError(f"the arguments of {method} cannot be sent: {error}") from error


def find_service(service: str) -> Any:
    """Return the class named by "package.module:Class"."""
    module, separator, name = service.partition(":")
    if not separator or not module or not name:
        raise ClusterError(f"a service is named package.module:Class, found {service!r}")
    found = getattr(importlib.import_module(module), name, None)
    if not inspect.isclass(found):
        raise ClusterError(f"module {module} has no class {name}")
    return found
