"""Memory of training: what a trainer needs, how much is free, and what is said when it runs out."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import nn

from etude.recipe.training import OptimizerRecipe
from etude.training.errors import OutOfMemory
from etude.training.kept import AT_ONCE
from etude.training.masters import Offload
from etude.training.muon import BATCH, blocks_of

_FULL = 4
"""Bytes of an fp32 number."""
_MMAP_THRESHOLD = -3
"""glibc's name of the size from which memory is not taken from the heap. Once set, glibc does not raise it."""
PROCESS = 350_000_000
"""Bytes that a process takes for the interpreter, torch and their buffers."""
_SAID = ("can't allocate memory", "cannot allocate memory", "bad_alloc", "out of memory", "alloc_failed")


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Bytes of a training process, without the interpreter and its libraries."""

    weights: int
    """The copy in the compute dtype of what the run trains; none if that is fp32, since the masters are the weights
    then."""
    masters: int
    moments: int
    frozen: int
    """Weights in the compute dtype that no stage trains: those of adapters' base."""
    gradients: int
    """Gradients in fp32 of all parameters that the stage trains."""
    fresh: int
    """Gradients of one pass that are added to those, if a step takes several passes or computes in another dtype."""
    update: int
    """What the optimizer computes for all parameters at once, besides all these."""
    blocks: int
    """What Muon computes for one batch of blocks."""
    activations: int = 0
    """What one pass keeps, without its logits."""
    logits: int = 0
    """The loss: a chunk of logits, what is computed from it, and the gradients of hidden states and head."""
    published: int = 0
    """Weights that RL keeps besides: the version last published, also for engines of this machine to map, and the
    networks that probe replay and measure the KL penalty."""
    publishing: int = 0
    """The next version, and what is written of it."""
    reused: bool = False
    """Whether the memory of activations is free for all else once they are gone. A CPU's heap keeps what small tensors
    took (see `return_freed`), and large ones, such as Muon's blocks, are allocated elsewhere."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: OptimizerRecipe,
        dtype: torch.dtype,
        *,
        trains: Callable[[str], bool] = lambda name: True,
        passes: int = 1,
        offload: Offload = "none",
        device: str = "cuda",
    ) -> Self:
        """Return what training the module takes on its device, without activations and without what `offload` leaves on
        the CPU, if that is another one. `trains` says of a parameter, by its name, whether the stage computes its
        gradient. The module may be on the meta device, without memory."""
        config, half, away = getattr(model, "config", None), dtype.itemsize, offload == "masters"
        frozen, learned, trained, by_muon = 0, 0, 0, 0
        groups = defaultdict[tuple[int, int], int](int)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                frozen += parameter.numel()
                continue
            learned += parameter.numel()
            if not trains(name):
                continue
            trained += parameter.numel()
            blocks = blocks_of(name, parameter, config) if optimizer.name == "muon" else None
            if blocks is not None:
                by_muon += parameter.numel()
                for block in blocks(parameter):
                    groups[min(block.shape[1:]), max(block.shape[1:])] += block.numel()
        moments = int((by_muon + 2 * (trained - by_muon)) * optimizer.moment_bytes)
        update = by_muon * _FULL
        if offload != "none" or optimizer.moments != "float32":  # copied, some parameters at a time
            update = min(trained, AT_ONCE) * 4 * _FULL
        return cls(
            weights=learned * half if away or half < _FULL else 0,
            masters=0 if away and device != "cpu" else learned * _FULL,
            moments=0 if offload != "none" and device != "cpu" else moments,
            frozen=frozen * half,
            gradients=trained * _FULL,
            fresh=trained * half if passes > 1 or half < _FULL else 0,
            update=update,
            blocks=max((_blocks(shape, numbers, half) for shape, numbers in groups.items()), default=0),
        )

    def during(self, *, activations: int, logits: int, reused: bool) -> Self:
        """Return this with what the passes of a step take."""
        return replace(self, activations=activations, logits=logits, reused=reused)

    def beside(self, *, published: int, publishing: int) -> Self:
        """Return this with what RL's versions of the weights take."""
        return replace(self, published=published, publishing=publishing)

    @property
    def standing(self) -> int:
        return self.weights + self.masters + self.moments + self.frozen + self.published

    @property
    def peak(self) -> int:
        """Largest sum that the process holds at once: at the loss of a pass, at the end of its backward pass, in the
        optimizer's step, or when a version is published."""
        sums = self.gradients if self.fresh else 0
        at_loss = sums + self.activations + self.logits
        at_end = self.gradients + self.fresh
        held = max(at_loss, at_end, self.gradients + self.update + self.blocks, self.publishing)
        return self.standing + (held if self.reused else max(held, at_loss + self.update + self.blocks))

    def __str__(self) -> str:
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "reused"}
        return ", ".join(f"{name} {in_gb(size)}" for name, size in parts.items() if size)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the recipe, and the memory that is needed with it."""

    fields: str
    """The assignments, as they are written in a recipe or on the command line."""
    peak: int


def advice(changes: Iterable[Change], limit: float) -> str:
    """Return what to change so that not more than `limit` bytes are needed: the first change that suffices, else the
    one that needs least."""
    every = list(changes)
    enough = next((change for change in every if change.peak <= limit), None)
    if enough is not None:
        return f"set {enough.fields}, which takes about {in_gb(enough.peak)}"
    if not every:
        return "take a smaller model, or a larger machine"
    least = min(every, key=lambda change: change.peak)
    return f"even with {least.fields} it takes about {in_gb(least.peak)}: take a smaller model, or a larger machine"


def _blocks(shape: tuple[int, int], numbers: int, half: int) -> int:
    """Return the bytes of orthogonalising blocks of a shape, `numbers` in all: the batch in fp32; in the compute dtype
    two iterates, and two products of a block with itself."""
    rows, columns = shape
    batch = min(numbers, max(BATCH, rows * columns))
    return batch * (_FULL + 2 * half) + 2 * half * batch * rows // columns


def own_limit(device: str) -> int:
    """Return how much this process can have at most, besides the interpreter: what is free, and what it holds
    already."""
    if device == "cuda":
        return free_memory(device) + torch.cuda.memory_allocated()
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return free_memory() + max(held - PROCESS, 0)


def return_freed() -> None:
    """Give the memory of every larger tensor back to the system when it is freed, from now on. Else glibc's heap keeps
    that of tensors of up to 32 MB: this saves page faults, a third of a pass's time, but where tensors of many sizes
    come and go, the heap grows to up to three times what is alive at once."""
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # other C libraries have no such heap
        mallopt(_MMAP_THRESHOLD, 1 << 17)


def in_gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def free_memory(device: str = "cpu") -> int:
    """Return the bytes that this process may still take: what the machine has available, within the limits of its
    address space (RLIMIT_AS) and of its control groups; on CUDA, what is free on the device or cached by torch. A plan
    made where there is no CUDA device assumes one of 80 GB."""
    if device == "cuda" and not torch.cuda.is_available():
        return 80_000_000_000
    if device == "cuda":
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    limits = [_available(), *_left_in_cgroups()]
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        limits.append(space - taken)
    return max(min(limits), 0)


@contextmanager
def told_when_short(what: str, device: str, needed: Callable[[], str]) -> Iterator[None]:
    """Context in which running out of memory raises OutOfMemory. `what` is what was being done; `needed` returns how
    much it takes and which field to change."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_shortage(error):
            raise
        found = re.search(r"allocate (\d[\d.]*) ?(bytes|[KMGT]iB)", str(error))
        unit = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
        asked = f", asked for {in_gb(float(found[1]) * unit[found[2]])} more" if found else ""
        traceback.clear_frames(error.__traceback__)  # they hold the tensors of what failed
        raise OutOfMemory(
            f"{what} ran out of memory on {device}{asked}: {needed()}; then run the same command again to go on"
        ) from error


def is_shortage(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: Python's, numpy's, torch's or the system's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)


def _available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _left_in_cgroups() -> Iterator[int]:
    """Yield what is left in each control group that limits this process's memory."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        second = not controllers
        place = Path("/sys/fs/cgroup" if second else "/sys/fs/cgroup/memory") / path.lstrip("/")
        names = ("memory.max", "memory.current") if second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        cached = "inactive_file" if second else "total_inactive_file"
        for group in (place, *place.parents):
            try:
                limit, used = ((group / name).read_text(encoding="ascii").strip() for name in names)
                stat = dict(row.split() for row in (group / "memory.stat").read_text(encoding="ascii").splitlines())
            except (OSError, ValueError):
                continue
            if limit.isdigit():
                yield int(limit) - int(used) + int(stat.get(cached, 0))
