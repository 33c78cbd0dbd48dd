"""Chooses the implementation of an operation by name.

If the named implementation cannot run the operation on the device, KernelUnavailable says why; another one is never
substituted. Printing a choice shows the operation, format, implementation and device.

```python
matmul = choose("grouped_mm", "triton", "fp8_block", x.device)
print(matmul)                       # grouped_mm of fp8_block by triton on cuda (NVIDIA H200, Triton 3.6.0)
y = matmul(quantised_x, quantised_w, placement.ends_e)
```
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from etude.model.errors import KernelUnavailable
from etude.model.precision.passes import passes_on

_QUANTISED = ("mxfp8", "nvfp4", "nvfp4_tensor", "fp8_block", "fp8_tile", "fp8_row")
_TILED = ("mxfp8", "fp8_block", "fp8_tile")
_MOVES = dict.fromkeys(("permute", "unpermute", "gate_gradients"), ("bf16",))
_FP8_FROM = (8, 9)
"""Minimum compute capability (major, minor) of a GPU that converts to E4M3 and multiplies E4M3 numbers."""


@dataclass(frozen=True, slots=True)
class Implementation:
    module: str
    """Name of the module, in this package, that has one function per operation."""
    formats: Mapping[str, tuple[str, ...]]
    """Supported formats by operation. For a matmul, `fp8_block` means 1 x 128 blocks times 128 x 128 blocks."""
    unfit: Callable[[str, torch.device], str | None]
    """Returns the reason why this implementation cannot run a format on a device; None if it can."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation chosen for one operation in one format. Calling it runs the operation."""

    operation: str
    implementation: str
    format: str
    where: str
    """The device and the software that computes there, to show to the user."""
    run: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    @property
    def by(self) -> str:
        """Implementation and device, as text: "by triton on cuda (NVIDIA H200, Triton 3.6.0)"."""
        return f"by {self.implementation} on {self.where}"

    def __str__(self) -> str:
        return f"{self.operation} of {self.format} {self.by}"


def choose(operation: str, implementation: str, format: str, device: torch.device | str) -> Choice:
    """Return the named implementation of an operation. Raises KernelUnavailable if it cannot run on the device."""
    device = torch.device(device)
    if reason := refusal(operation, implementation, format, device):
        others = [name for name in IMPLEMENTATIONS if refusal(operation, name, format, device) is None]
        raise KernelUnavailable(
            f"{operation} of {format} by {implementation} on {device.type}: {reason}; "
            f"implementations that can run it here: {', '.join(others) or 'none'}"
        )
    module = importlib.import_module(f"{__package__}.{IMPLEMENTATIONS[implementation].module}")
    return Choice(operation, implementation, format, _where(implementation, format, device), getattr(module, operation))


def refusal(operation: str, implementation: str, format: str, device: torch.device | str) -> str | None:
    """Return the reason why an implementation cannot run the operation on the device; None if it can."""
    found = IMPLEMENTATIONS.get(implementation)
    if found is None:
        return f"there is no such implementation; the implementations are {', '.join(IMPLEMENTATIONS)}"
    if operation not in found.formats:
        return f"it implements only {', '.join(found.formats)}"
    if format not in found.formats[operation]:
        return f"it takes only the formats {', '.join(found.formats[operation])}"
    return found.unfit(format, torch.device(device))


def overview(device: torch.device | str) -> str:
    """List the implementations that can run each operation and format on this device, and why the others cannot."""
    lines = []
    for operation, formats in IMPLEMENTATIONS["reference"].formats.items():
        for format in formats:
            reasons = {name: refusal(operation, name, format, device) for name in IMPLEMENTATIONS}
            lines.append(f"{operation} of {format}: {', '.join(name for name in reasons if reasons[name] is None)}")
            lines += [f"  not {name}: {reason}" for name, reason in reasons.items() if reason is not None]
    return "\n".join(lines)


def _where(implementation: str, format: str, device: torch.device) -> str:
    facts = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    if implementation == "reference" and format != "bf16":
        facts.append(f"rounding by {passes_on(device).by()}")
    if implementation == "triton":
        import triton

        facts.append("under Triton's interpreter" if triton.knobs.runtime.interpret else f"Triton {triton.__version__}")
    return f"{device.type} ({', '.join(facts)})" if facts else device.type


def _by_triton(format: str, device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    import triton

    if triton.knobs.runtime.interpret:
        return None
    if device.type != "cuda":
        return (
            "Triton compiles for GPUs only; to interpret its kernels here, set TRITON_INTERPRET=1 before importing it"
        )
    return _lacking(device, (8, 0) if format == "bf16" else _FP8_FROM)


def _by_torch(format: str, device: torch.device) -> str | None:
    return None if device.type == "cpu" else _lacking(device, (8, 0))


def _by_torch_scaled(format: str, device: torch.device) -> str | None:
    return "torch implements it for GPUs only" if device.type != "cuda" else _lacking(device, (9, 0))


def _lacking(device: torch.device, least: tuple[int, int]) -> str | None:
    """Return None if the device is a CUDA device of at least this compute capability, else the reason why not."""
    if device.type != "cuda":
        return f"it needs a CUDA device, not {device.type}"
    found = torch.cuda.get_device_capability(device)
    if found >= least:
        return None
    return f"compute capability {least[0]}.{least[1]} is needed; this device's is {found[0]}.{found[1]}"


IMPLEMENTATIONS = {
    "reference": Implementation(
        "reference",
        {
            "quantise": _QUANTISED,
            "quantise_both": _QUANTISED,
            "swiglu_quantise": _QUANTISED,
            "swiglu_quantise_both": _QUANTISED,
            **_MOVES,
            "grouped_mm": ("bf16", *_QUANTISED),
            "grouped_wgrad": ("bf16", *_QUANTISED),
        },
        lambda format, device: None,
    ),
    "triton": Implementation(
        "in_triton",
        {
            "quantise": _QUANTISED,
            "quantise_both": _TILED,
            "swiglu_quantise": tuple(name for name in _QUANTISED if name != "nvfp4_tensor"),
            "swiglu_quantise_both": _TILED,
            **_MOVES,
            "grouped_mm": ("bf16", "mxfp8", "fp8_block", "fp8_row"),
            "grouped_wgrad": ("bf16", "mxfp8", "fp8_tile"),
        },
        _by_triton,
    ),
    "torch": Implementation("torch_grouped", {"grouped_mm": ("bf16",), "grouped_wgrad": ("bf16",)}, _by_torch),
    "torch_scaled": Implementation("torch_scaled", {"grouped_mm": ("fp8_row",)}, _by_torch_scaled),
}
