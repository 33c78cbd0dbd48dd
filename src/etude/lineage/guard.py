"""Checks before a run starts: one driver per run folder, a writable folder, a supported recipe."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.journal import RunPaths
from etude.lineage.state import LineageError
from etude.recipe import Recipe
from etude.tasks.sources.microrepo import SEEN_KINDS


@contextmanager
def sole_driver(root: Path, lock: Path) -> Iterator[None]:
    """Hold the run folder's lock: only one process drives the run. The kernel releases it however the process ends."""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        root.chmod(0o700)
        handle = lock.open("a+")
    except OSError as error:
        raise LineageError(
            f"cannot write the run folder {root}: {error.strerror}; choose another with --runs"
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            raise LineageError(
                f"another run (process {owner}) is working in {root}; wait for it or use another name"
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def require_supported(recipe: Recipe, paths: RunPaths | None = None) -> None:
    """Raise LineageError for a recipe that a later stage could not run, before hours of training are spent on it.
    Without `paths`, the run's folder, only a dry run is asked for."""
    if recipe.compute.device != "cpu":
        raise LineageError(
            f'compute.device = "{recipe.compute.device}": RL and the built-in engine run on the CPU only so far; '
            'set compute.device = "cpu"'
        )
    from etude.model.precision.kernels import implementation_for  # imported here: the checks above need no torch
    from etude.training.compute import DTYPES

    # A dtype that the recipe leaves open may be probed to be bf16, the one that kernels need, so assume that.
    implementation_for(recipe.precision, recipe.compute.device, DTYPES.get(recipe.compute.dtype, DTYPES["bfloat16"]))
    if recipe.model.from_ and not (paths is not None and paths.model("base").exists()):
        from etude.lineage.base import find_base

        find_base(recipe, shape_only=paths is None)
    if recipe.reads_corpus and not (recipe.corpus.sources or recipe.corpus.folders or recipe.corpus.code):
        raise LineageError(
            "corpus.sources = [] and corpus.folders = []: without corpus.code there is nothing to pretrain on; name a "
            "source or a folder"
        )
    if never := [kind for kind in recipe.sft.kinds if "sft" in recipe.stages and kind not in SEEN_KINDS]:
        raise LineageError(
            f"sft.kinds: no train task has the kind {never[0]!r}; expected some of {', '.join(SEEN_KINDS)}"
        )
    lookup_steps = round(recipe.pretrain.lookup_share * recipe.pretrain.steps)
    if "pretrain" in recipe.stages and lookup_steps and "generated" not in recipe.corpus.sources:
        raise LineageError(
            f"pretrain.lookup_share = {recipe.pretrain.lookup_share:g}: look-ups are generated documents; expected "
            f'"generated" in corpus.sources, found {recipe.corpus.sources}; add it, or set pretrain.lookup_share = 0'
        )
