"""Decorator of the loops that Numba compiles for this CPU at their first call and caches on disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def loop(function: Function) -> Function:
    """Have a function compiled. It runs without the interpreter's lock, and checks no array's bounds. Numba is imported
    when the first of them is called, since that takes most of a second."""

    @cache
    def compiled() -> Callable[..., Any]:
        import numba

        njit = partial(numba.njit, nogil=True, error_model="numpy")
        try:
            return cast(Function, njit(cache=True)(function))
        except RuntimeError:  # neither the package's folder nor the home is writable: each process compiles for itself
            return cast(Function, njit()(function))

    @wraps(function)
    def call(*given: Any) -> Any:
        return compiled()(*given)

    return cast(Function, call)
