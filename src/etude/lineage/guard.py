"""Checks before a run starts: one driver per run folder, a writable folder, a supported recipe."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.engine.protocol import EngineError
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
    from etude.model.precision.kernels import implementation_for  # imported here: no check before needs torch
    from etude.training.compute import DTYPES

    if _device_is_there(recipe, needed=paths is not None):
        # A dtype that the recipe leaves open may be probed to be bf16, the one that kernels need, so assume that.
        dtype = DTYPES.get(recipe.compute.dtype, DTYPES["bfloat16"])
        implementation_for(recipe.precision, recipe.compute.device, dtype)
    if recipe.model.from_ and not (paths is not None and paths.model("base").exists()):
        from etude.lineage.base import find_base

        find_base(recipe, shape_only=paths is None)
    if recipe.engine.kind == "vllm":
        _require_vllm(recipe, paths)
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


def _require_vllm(recipe: Recipe, paths: RunPaths | None) -> None:
    """Raise LineageError if vLLM is not installed, or cannot serve the network as the trainer computes it."""
    from etude.engine.vllm import checked_interpreter, why_not
    from etude.lineage.base import network_of
    from etude.model.families import write_config

    reason = why_not(
        write_config(network_of(recipe, paths)),
        recipe.engine,
        device=recipe.compute.device,
        lockstep="rl" in recipe.stages and recipe.rl.mode == "sync",
        precision=recipe.precision,
        lora=recipe.lora,
    )
    if reason:
        raise LineageError(f'engine.kind = "vllm": {reason}')
    if paths is not None:
        try:
            checked_interpreter(recipe.engine.vllm.python, any_version=recipe.engine.vllm.any_version)
        except EngineError as error:
            raise LineageError(str(error)) from error


def _device_is_there(recipe: Recipe, *, needed: bool) -> bool:
    """Return whether this machine has the recipe's device. Raise LineageError if it is `needed` and missing, or if it
    cannot do what the recipe asks for."""
    if recipe.compute.device == "cpu":
        if recipe.compute.compile:
            raise LineageError('compute.compile = true compiles for GPUs; leave it out, or set compute.device = "cuda"')
        return True
    if recipe.precision.invariant:
        raise LineageError(
            'precision.invariant = true: it holds on CPUs only; leave it out, or set compute.device = "cpu"'
        )
    if "rl" in recipe.stages and recipe.rl.mode == "sync" and not recipe.compute.deterministic:
        raise LineageError(
            'rl.mode = "sync" promises equal bits, which a GPU gives only on request: set compute.deterministic = true'
        )
    import torch

    if not torch.cuda.is_available():
        if needed:
            raise LineageError(
                'compute.device = "cuda": torch finds no CUDA device; set compute.device = "cpu" or run where one is'
            )
        return False
    if recipe.compute.dtype != "float32" and torch.cuda.get_device_capability() < (8, 0):
        raise LineageError(f"{torch.cuda.get_device_name()} does not compute in bfloat16; set compute.dtype = float32")
    return True
