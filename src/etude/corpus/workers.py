"""Runs a function on many tasks in several processes, in order, with few results in memory at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from etude.corpus.errors import CorpusError

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
"""Tasks per process that are handed out before the oldest result is taken."""
_shared: Any = None


def cores() -> int:
    return len(os.sched_getaffinity(0))


def each(
    function: Callable[[Shared, Task], Result], shared: Shared, tasks: Iterable[Task], processes: int
) -> Iterator[Result]:
    """Yield function(shared, task) of each task, in their order. `shared` is sent to each process once. One process
    means this one."""
    if processes == 1:
        for task in tasks:
            yield function(shared, task)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(shared,))
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(_call, function, task))
            if len(waiting) > _AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise CorpusError(
            "a process that builds the corpus was killed, perhaps for want of memory; run the same command again to go "
            "on, with fewer processes if it happens again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(shared: Any) -> None:
    global _shared
    _shared = shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told too, and ends this process
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process once its parent has died: nobody would tell it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[[Any, Task], Result], task: Task) -> Result:
    return function(_shared, task)
