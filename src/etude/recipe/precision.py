"""Recipe section for number formats: what is rounded to NVFP4, MXFP8 or FP8 in training and inference."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from etude.recipe.section import Section


class PrecisionRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"kernels"})
    experts: Literal["bf16", "nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block"] = "bf16"
    """Number format of the routed experts' matmuls, in training and in the engine. The router is never rounded.

    - "bf16": no rounding; matmuls use the compute dtype. With `emulate`, their operands are rounded to bf16, whatever
      the compute dtype is.
    - "nvfp4": forward in NVFP4 with one outer scale per token, backward in MXFP8.
    - "nvfp4_tensor": the same with one outer scale for all tokens of a matmul, as in stock NVFP4. The result for a
      token then depends on the other tokens of its batch.
    - "mxfp8": forward and backward in MXFP8.
    - "fp8_block": forward and backward in FP8 with a scale per block: 1 x 128 for activations, 128 x 128 for weights.
    """
    also: list[Literal["shared", "attention"]] = []
    """Further modules whose matmuls are rounded like the experts': "shared" is the shared expert, "attention" the
    projections of queries, latent (or keys and values) and output. Under latent attention, the projection from the
    latent to keys and values is never rounded, because the engine absorbs it into the queries."""
    since: Literal["pretrain", "long", "mtp", "sft", "rl"] = "pretrain"
    """First stage whose matmuls are rounded; earlier stages use the compute dtype. With "rl", rounding covers RL (or
    SFT continued in its place) and the evaluation."""
    emulate: bool = False
    """Emulate rounded matmuls in plain torch: round the operands, then multiply in a wider dtype. This is exact, but
    slower than bf16. Without `emulate`, a format that the device cannot multiply is refused."""
    kernels: Literal["auto", "torch", "triton", "reference"] = "auto"
    """Implementation of the routed experts' matmuls. If the named implementation cannot run, the recipe is refused.

    - "torch": torch's own matmuls, grouped where that is faster; bf16 only.
    - "triton": our kernels, for bf16, "mxfp8" and "fp8_block".
    - "reference": plain torch. With `emulate` it is the emulation. Without, it is the reference that the kernels are
      tested against, and a recipe can choose it for bf16 only.
    - "auto": "reference" with `emulate`, else "torch" for bf16. For other formats, "triton" if the GPU can multiply
      numbers of the format directly, which is possible for "fp8_block" only. Otherwise the recipe is refused.
    """
    invariant: bool = False
    """Batch invariance: a sequence has bit-identical logits in training and in the engine, whatever else is in its
    batch and however the sequence is split into forward passes. This holds from the stage `since` on. It is slower, and
    tested on CPUs only."""
    reciprocal_bits: int | None = Field(None, ge=1, le=24)
    """For studies: compute NVFP4's codes (4-bit numbers) and block scales with reciprocals of this many bits instead of
    divisions, as fast-math kernels do. 22 is what fast division on GPUs guarantees (an error of 2 ulp). Unset: divide
    exactly."""

    @property
    def rounds(self) -> bool:
        """Whether the operands of any matmul are rounded to the number format that `experts` names."""
        return self.experts != "bf16" or self.emulate

    @property
    def by_kernels(self) -> bool:
        """Whether expert layers are built from Étude's kernels, in Triton or as their reference in plain torch. Always
        false with `emulate`: `kernels` = "reference" then means the emulation, which uses no kernels."""
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
            raise ValueError(
                'also names further layers to round, but experts = "bf16" rounds nothing without emulate: '
                "set experts to another format, or also = []"
            )
        if self.invariant and self.experts == "nvfp4_tensor":
            raise ValueError(
                "invariant cannot be combined with nvfp4_tensor, whose scale depends on all tokens of a batch: "
                'set experts = "nvfp4" or invariant = false'
            )
        if self.rounds and self.kernels not in ("auto", "reference" if self.emulate else "triton"):
            raise ValueError(
                f'kernels = "{self.kernels}" cannot be combined with emulate = {str(self.emulate).lower()}: rounded '
                'matmuls need kernels = "reference" if emulated and "triton" if not; "auto" chooses the right one'
            )
        if self.by_kernels and self.also:
            raise ValueError("kernels compute the routed experts only: set also = [], or emulate = true")
        if self.by_kernels and self.invariant:
            raise ValueError(
                "kernels are not batch-invariant: set invariant = false, or avoid them by emulate = true or, for bf16, "
                'kernels = "torch"'
            )
        if self.reciprocal_bits is not None and not self.experts.startswith("nvfp4"):
            raise ValueError("reciprocal_bits affects NVFP4 only: leave it out or set experts to nvfp4 or nvfp4_tensor")
        return self
