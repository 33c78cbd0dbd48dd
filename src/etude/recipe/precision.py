"""In which numbers matmuls are computed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from etude.recipe.section import Section


class PrecisionRecipe(Section):
    experts: Literal["bf16", "nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block"] = "bf16"
    """Formats of the routed experts' matmuls, in training and in the engine. "bf16" leaves them in the compute dtype.
    "nvfp4": forward in NVFP4 with one outer scale per token, backward in MXFP8. "nvfp4_tensor": likewise, but one outer
    scale for all tokens of a matmul, as stock NVFP4 has it: what a token becomes depends on its batch. "mxfp8" and
    "fp8_block" (activations 1 x 128, weights 128 x 128): both ways. The router is never rounded."""
    also: list[Literal["shared", "attention"]] = []
    """What else is rounded like the experts: the shared expert; attention's projections of queries, latent and output.
    The one from the latent to keys and values never is, since the engine absorbs it into the queries."""
    since: Literal["pretrain", "long", "mtp", "sft", "rl"] = "pretrain"
    """The first stage that is rounded; those before it are left in the compute dtype. "rl": RL, SFT continued in its
    place, and the evaluation."""
    emulate: bool = False
    """Compute what rounded matmuls would give where the device has none of its own: exact, and slower than bf16.
    Without it such a recipe is refused."""
    invariant: bool = False
    """Batch invariance: the logits of a sequence have the same bits whatever else is in the batch and however it was
    cut into passes, in training and in the engine alike, from the stage `since` on. Slower; proven on CPUs only."""
    reciprocal_bits: int | None = Field(None, ge=1, le=24)
    """For studies: NVFP4 multiplies by a reciprocal good to so many bits, as fast-math kernels do, in place of
    dividing."""

    def native(self, device: str) -> bool:
        """Whether a device can compute so without emulation. None has kernels for anything but bf16 here yet."""
        return self.experts == "bf16"

    def __str__(self) -> str:
        since = "" if self.since == "pretrain" else f", since {self.since}"
        invariant = ", batch-invariant" if self.invariant else ""
        if self.experts == "bf16":
            return f"no matmul is rounded{invariant and invariant + since}"
        backward = "mxfp8" if self.experts.startswith("nvfp4") else self.experts
        where = ", ".join(["routed experts", *self.also])
        fast = "" if self.reciprocal_bits is None else f", reciprocals of {self.reciprocal_bits} bits"
        return f"{where}: forward {self.experts}, backward {backward}{fast}, emulated{invariant}{since}"

    @model_validator(mode="after")
    def _consistent(self) -> PrecisionRecipe:
        if self.experts == "bf16" and self.also:
            raise ValueError("also rounds like experts, which round nothing: choose a format or set also = []")
        if self.invariant and self.experts == "nvfp4_tensor":
            raise ValueError(
                "invariant does not go with nvfp4_tensor, whose scale depends on all tokens of a batch: "
                'set experts = "nvfp4" or invariant = false'
            )
        if self.reciprocal_bits is not None and not self.experts.startswith("nvfp4"):
            raise ValueError("reciprocal_bits is about NVFP4: leave it out, or set experts to nvfp4 or nvfp4_tensor")
        return self
