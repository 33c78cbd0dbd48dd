"""The device, dtype and number of threads of a stage.

Among CPUs, bf16 is fast only on those with bf16 instructions; on others it is several times slower than fp32. So on a
CPU the dtype "auto" is chosen by a probe of about a second. A stage stores the choice, because a resumed run must
compute exactly as before.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from etude.recipe.compute import ComputeRecipe
from etude.training.errors import TrainingError
from etude.training.files import write_file

_PROBE_SECONDS = 0.4
_BF16_GAIN = 1.1  # fp32 unless bf16 is clearly faster, since fp32 loses no precision

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""torch dtypes by the names that recipes use."""


@dataclass(frozen=True, slots=True)
class Compute:
    device: str
    dtype_name: str
    threads: int
    reason: str
    """Why this dtype was chosen, to show to the user: "set by the recipe", for example."""

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.dtype_name]

    @property
    def accelerator(self) -> str:
        """Name of the GPU; empty on CPU."""
        return torch.cuda.get_device_name() if self.device == "cuda" else ""

    @property
    def is_here(self) -> bool:
        """Whether this machine has the device. A plan can be made without it, with the speed of this CPU."""
        return self.device == "cpu" or torch.cuda.is_available()

    def apply(self) -> None:
        """Set torch's thread count, which holds for the calling thread only: every thread that trains must call
        this."""
        torch.set_num_threads(self.threads)

    def require_determinism(self, recipe: ComputeRecipe) -> None:
        """Make torch raise an error where an operation might not give the same bits each time; on a GPU only if the
        recipe asks for it. Call it before the first use of the GPU."""
        if self.device != "cpu" and not recipe.deterministic:
            return
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with a fixed workspace
        # Not use_deterministic_algorithms: it imports the compiler, which takes seconds and creates folders of its own.
        torch.set_deterministic_debug_mode("error")

    def __str__(self) -> str:
        return f"{self.device}, {self.dtype_name}, {self.threads} threads ({self.reason})"


def choose_compute(recipe: ComputeRecipe) -> Compute:
    """Choose device, dtype and threads. dtype "auto" is bf16 on CUDA and probed on a CPU; 0 threads means all cores."""
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise TrainingError('compute.device is "cuda" but torch finds no CUDA device: set compute.device = "cpu"')
    threads = recipe.threads or len(os.sched_getaffinity(0))
    if recipe.dtype != "auto":
        return Compute(recipe.device, recipe.dtype, threads, "set by the recipe")
    if recipe.device == "cuda":
        return Compute("cuda", "bfloat16", threads, "CUDA devices compute in bfloat16")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        full, half = (_gigaflops(dtype) for dtype in (torch.float32, torch.bfloat16))
    finally:
        torch.set_num_threads(before)
    chosen = "bfloat16" if half > full * _BF16_GAIN else "float32"
    return Compute("cpu", chosen, threads, f"probe: fp32 {full:.0f}, bf16 {half:.0f} GFLOP/s")


def planned_compute(recipe: ComputeRecipe) -> Compute:
    """Choose as `choose_compute` does, also on a machine without the recipe's GPU, for a plan."""
    if recipe.device == "cpu" or torch.cuda.is_available():
        return choose_compute(recipe)
    dtype = "bfloat16" if recipe.dtype == "auto" else recipe.dtype
    return Compute(
        recipe.device,
        dtype,
        recipe.threads or len(os.sched_getaffinity(0)),
        "no CUDA device is here: seconds are those of this CPU, memory that of a GPU with 80 GB",
    )


def remembered_compute(path: Path, recipe: ComputeRecipe) -> Compute:
    """Return the settings stored at `path`. If there are none, choose and store them."""
    if path.exists():
        return Compute(**json.loads(path.read_text(encoding="utf-8")))
    chosen = choose_compute(recipe)
    write_file(path, json.dumps(asdict(chosen), indent=1).encode())
    return chosen


def _gigaflops(dtype: torch.dtype) -> float:
    # The shapes of a small model's feed-forward on 2,048 tokens.
    left = torch.ones(2048, 128, dtype=dtype)
    right = torch.ones(128, 352, dtype=dtype)
    left @ right
    runs, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < _PROBE_SECONDS:
        for _ in range(10):
            left @ right
        runs += 10
    return 2e-9 * 2048 * 128 * 352 * runs / spent
