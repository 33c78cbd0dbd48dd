"""Turns exceptions into one line and an exit code: 0 done, 1 our failure or the machine's, 2 the user's mistake, 130
interrupted.

An exception that belongs to no family in FAMILIES is a bug of Étude. Only bugs show their traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import ParamSpec

FAILED, MISTAKE, INTERRUPTED = 1, 2, 130
Args = ParamSpec("Args")

FAMILIES = {
    "etude.recipe.load.RecipeError": MISTAKE,
    "etude.lineage.state.LineageError": MISTAKE,
    "etude.journal.journal.JournalError": MISTAKE,
    "etude.trace.file.TraceError": MISTAKE,
    "etude.text.vocabulary.TokenizerError": MISTAKE,
    "etude.corpus.errors.CorpusError": MISTAKE,
    "etude.bench.errors.BenchError": MISTAKE,
    "etude.tasks.task.TaskError": MISTAKE,
    "etude.tasks.task.SplitViolation": MISTAKE,
    "etude.tasks.sources.registry.UnknownSource": MISTAKE,
    "etude.tasks.overlap.reading.OverlapError": MISTAKE,
    "etude.harness.schema.SchemaError": MISTAKE,
    "etude.harness.editing.apply.ApplyConflict": MISTAKE,
    "etude.harness.permissions.PermissionsError": MISTAKE,
    "etude.harness.sessions.record.SessionError": MISTAKE,
    "etude.harness.workspaces.folder_files.FolderTooLarge": MISTAKE,
    "etude.harness.search.ripgrep.NoRipgrep": MISTAKE,
    "etude.harness.search.ripgrep.SearchFailed": FAILED,
    "etude.sandbox.contract.SandboxUnavailable": MISTAKE,
    "etude.model.errors.UnsupportedCheckpoint": MISTAKE,
    "etude.model.errors.CannotQuantise": MISTAKE,
    "etude.model.errors.KernelUnavailable": MISTAKE,
    "etude.training.errors.TrainingError": MISTAKE,
    "etude.training.errors.NonFiniteError": FAILED,
    "etude.weights.errors.WeightsError": FAILED,
    "etude.weights.errors.StoreFailed": MISTAKE,
    "etude.model.errors.ModelError": FAILED,
    "etude.cluster.contract.ClusterError": FAILED,
    "etude.engine.protocol.EngineError": FAILED,
    "etude.sandbox.contract.ImageError": MISTAKE,
    "etude.sandbox.contract.SandboxError": FAILED,
    "etude.harness.policy.PolicyError": FAILED,
    "etude.serve.limits.ServeError": MISTAKE,
    "etude.journal.waiting.WaitExpired": FAILED,
    "etude.rollout.demonstrate.TooFewDemonstrations": FAILED,
    "etude.rl.reconciler.ProtocolViolation": FAILED,
}
"""Exit code of each exception family that may reach a user. An exception belongs to the family of its closest base
class. The classes are given by name, so that this file need not import their packages."""

_EXTRAS = {"torch": "train", "safetensors": "train", "obstore": "train", "rensa": "train", "ray": "ray"}
_EXTRAS |= {"matplotlib": "ui", "tokenizers": "formats", "textual": "chat"}
_EXTRAS |= {"starlette": "serve", "uvicorn": "serve", "h11": "serve"}

_OF_THE_PLACE = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EIO}
_FULL = {errno.ENOSPC, errno.EDQUOT}


def exit_code(command: Callable[[], int], *, when_interrupted: str = "interrupted") -> int:
    """Run a verb and return its exit code. Exceptions are printed as one line, except for bugs, which are raised."""
    try:
        return command()
    except KeyboardInterrupt:
        return _say(when_interrupted, INTERRUPTED)
    except Exception as error:
        told = explained(error)
        if told is None:
            raise
        return _say(*told)


def explained(error: Exception) -> tuple[str, int] | None:
    """Return an exception's one-line message and exit code; None if it is a bug of Étude."""
    for cause in _causes(error):
        if _is_full_disk(cause):
            where = getattr(cause, "filename", None)
            full = f"the disk is full: cannot write {where}" if where else "the disk is full"
            return f"{full}; free some space, then run the same command again to resume", MISTAKE
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        extra = _EXTRAS[error.name]
        return f"this command needs {error.name}: install it with `pip install 'etude[{extra}]'`", MISTAKE
    if isinstance(error, OSError) and error.errno in _OF_THE_PLACE:
        return f"{error.strerror}: {error.filename or 'a file of the run'}", MISTAKE
    code = family_code(type(error))
    return None if code is None else (first_line(error), code)


def finish(command: Callable[[], int], *, when_interrupted: str = "interrupted") -> None:
    """Run a verb, then exit the process with its exit code."""
    sys.exit(exit_code(command, when_interrupted=when_interrupted))


def verb(when_interrupted: str = "interrupted") -> Callable[[Callable[Args, int]], Callable[Args, None]]:
    """Decorator of a Typer command: the process exits with the code that the command returns, or with the code of the
    exception that it raises."""

    def decorated(command: Callable[Args, int]) -> Callable[Args, None]:
        @wraps(command)
        def run(*args: Args.args, **kwargs: Args.kwargs) -> None:
            finish(partial(command, *args, **kwargs), when_interrupted=when_interrupted)

        return run

    return decorated


def family_code(kind: type[BaseException]) -> int | None:
    for base in kind.__mro__:
        code = FAMILIES.get(f"{base.__module__}.{base.__qualname__}")
        if code is not None:
            return code
    return None


def _say(line: str, code: int) -> int:
    print(f"etude: {line}", file=sys.stderr)
    return code


def first_line(error: Exception) -> str:
    """Return the first line of the exception's message. Messages from another process also contain its traceback, which
    the journal keeps."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_full_disk(error: BaseException) -> bool:
    """Whether the exception says that the disk is full. Its text is searched too, since another process or a library
    may have dropped the errno."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(os.strerror(number) in str(error) for number in _FULL)
