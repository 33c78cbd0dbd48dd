"""The code of the store process. It becomes root over the subordinate ids of its owner, the process that started it,
and forks a child for each call of the owner.

It is single-threaded, so that forked children are consistent. It ends, together with its children, when the owner ends
or closes the socket over which it sends calls.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from etude.sandbox.contract import SandboxError
from etude.sandbox.images.ids import IdRange
from etude.sandbox.images.store import ImageStore
from etude.sandbox.images.store_process import READY
from etude.sandbox.inside import kernel, subordinate

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
"""Signals that the store process ignores: Ctrl-C is for its owner, SIGTERM ends its children (it is sent to the whole
group), and SIGCHLD is ignored so that the kernel reaps them."""


def main(control_fd: int, root: str, owner: str, count: int, users: int, groups: int) -> None:
    """Serve the calls of the owner until it ends. Each call comes as a connection over the socket `control_fd`. `users`
    and `groups` are the first subordinate ids on the host, `count` is the number of each."""
    control = socket.socket(fileno=control_fd)
    subordinate.enter(users, groups, count)
    kernel.rename_process("etude-store")
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    store = ImageStore.for_store_process(Path(root), IdRange(subordinate.FIRST, count, (users, groups)), owner)
    parent, owner_pidfd = os.getpid(), os.pidfd_open(os.getppid())
    control.send(READY)
    while True:
        ready, _, _ = select.select([control.fileno(), owner_pidfd], [], [])
        numbers = socket.recv_fds(control, 16, 1)[1] if owner_pidfd not in ready else []
        if not numbers:
            _kill_children()
            return
        if os.fork() == 0:
            _serve(store, parent, numbers[0], (control.fileno(), owner_pidfd))
        os.close(numbers[0])


def _kill_children() -> None:
    """Kill the children and wait for them, so that no process writes to the store's trees any more."""
    os.killpg(0, signal.SIGTERM)
    with contextlib.suppress(ChildProcessError):
        os.wait()


def _serve(store: ImageStore, parent: int, line_fd: int, others: tuple[int, ...]) -> NoReturn:
    """In a forked child, perform the call from the socket `line_fd`, send its result, and finish the background jobs
    that it has started. `others` are inherited descriptors to close."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # The parent has died already.
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for other in others:
            os.close(other)
        with socket.socket(fileno=line_fd).makefile("rwb") as line:

            def send(kind: str, value: Any) -> None:
                line.write(pickle.dumps((kind, value)))
                line.flush()

            module, function, args, kwargs, reports, folder, environment = pickle.load(line)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            if reports:
                kwargs["say"] = functools.partial(send, "said")
            work: Any = functools.reduce(getattr, function.split("."), importlib.import_module(module))
            try:
                send("returned", work(store, *args, **kwargs))
            except Exception as error:  # noqa: BLE001 - every error is passed to the caller
                send("raised", _picklable(error))
        store.finish()
    except BrokenPipeError:
        pass  # The caller no longer waits for the result.
    except BaseException:  # noqa: BLE001 - the code of `main` must not continue in the child
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _picklable(error: Exception) -> Exception:
    """Return an exception that can be pickled. An unexpected one gets its traceback as a note."""
    if not isinstance(error, SandboxError | OSError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickling may fail in any way
        return SandboxError(f"{type(error).__name__}: {error}")
    return error
