"""In which numbers matmuls are computed."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from etude.recipe.section import Section


class PrecisionRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"kernels"})
    experts: Literal["bf16", "nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block"] = "bf16"
    """Formats of the routed experts' matmuls, in training and in the engine. "bf16" leaves them in the compute dtype;
    with `emulate` it rounds their operands to bf16, whatever the rest is computed in. "nvfp4": forward in NVFP4 with
    one outer scale per token, backward in MXFP8. "nvfp4_tensor": likewise, but one outer scale for all tokens of a
    matmul, as stock NVFP4 has it: what a token becomes depends on its batch. "mxfp8" and "fp8_block" (activations
    1 x 128, weights 128 x 128): both ways. The router is never rounded."""
    also: list[Literal["shared", "attention"]] = []
    """What else is rounded like the experts: the shared expert; attention's projections of queries, latent and output.
    The one from the latent to keys and values never is, since the engine absorbs it into the queries."""
    since: Literal["pretrain", "long", "mtp", "sft", "rl"] = "pretrain"
    """The first stage that is rounded; those before it are left in the compute dtype. "rl": RL, SFT continued in its
    place, and the evaluation."""
    emulate: bool = False
    """Compute in plain torch what rounded matmuls would give: exact, and slower than bf16. Without it, a format that
    the device has no matmuls for is refused."""
    kernels: Literal["auto", "torch", "triton", "reference"] = "auto"
    """Who computes the routed experts. "torch": torch's own matmuls, grouped where that pays, of bf16 alone. "triton":
    our kernels, of bf16, "mxfp8" and "fp8_block". "reference": plain torch that kernels are held against; rounded, it
    is what `emulate` stands for. "auto": "reference" to emulate, "torch" for bf16 else, else "triton" on a GPU that
    multiplies the format's codes. What is named and cannot be had is refused."""
    invariant: bool = False
    """Batch invariance: the logits of a sequence have the same bits whatever else is in the batch and however it was
    cut into passes, in training and in the engine alike, from the stage `since` on. Slower; proven on CPUs only."""
    reciprocal_bits: int | None = Field(None, ge=1, le=24)
    """For studies: NVFP4's codes and its blocks' scales come of multiplying by a reciprocal good to so many bits, as
    fast-math kernels do, in place of dividing. 22 is what fast division on GPUs is sure of: an error of 2 ulp."""

    @property
    def rounds(self) -> bool:
        """Whether anything has other numbers than the compute dtype gives."""
        return self.experts != "bf16" or self.emulate

    @property
    def by_kernels(self) -> bool:
        """Whether layers of experts are made of kernels, rather than of torch's own matmuls or of emulated ones."""
        return not self.emulate if self.rounds else self.kernels in ("triton", "reference")

    def __str__(self) -> str:
        since = "" if self.since == "pretrain" else f", since {self.since}"
        invariant = ", batch-invariant" if self.invariant else ""
        if not self.rounds:
            return f"no matmul is rounded{invariant and invariant + since}"
        backward = "mxfp8" if self.experts.startswith("nvfp4") else self.experts
        where = ", ".join(["routed experts", *self.also])
        fast = "" if self.reciprocal_bits is None else f", reciprocals of {self.reciprocal_bits} bits"
        emulated = ", emulated" if self.emulate else ", codes widened to bf16" if self.experts == "mxfp8" else ""
        return f"{where}: forward {self.experts}, backward {backward}{fast}{emulated}{invariant}{since}"

    @model_validator(mode="after")
    def _consistent(self) -> PrecisionRecipe:
        if not self.rounds and self.also:
            raise ValueError("also rounds like experts, which round nothing: choose a format or set also = []")
        if self.invariant and self.experts == "nvfp4_tensor":
            raise ValueError(
                "invariant does not go with nvfp4_tensor, whose scale depends on all tokens of a batch: "
                'set experts = "nvfp4" or invariant = false'
            )
        if self.rounds and self.kernels not in ("auto", "reference" if self.emulate else "triton"):
            raise ValueError(
                f'kernels = "{self.kernels}" does not go with emulate = {str(self.emulate).lower()}: rounded matmuls '
                "are emulated by the reference, and not emulated by triton"
            )
        if self.by_kernels and self.also:
            raise ValueError("kernels are of the routed experts alone: set also = [], or emulate = true")
        if self.by_kernels and self.invariant:
            raise ValueError("kernels are not batch-invariant: set invariant = false, or have none (emulate, torch)")
        if self.reciprocal_bits is not None and not self.experts.startswith("nvfp4"):
            raise ValueError("reciprocal_bits is about NVFP4: leave it out, or set experts to nvfp4 or nvfp4_tensor")
        return self
