"""Measures what each low-precision format does to a run's checkpoint, on held-out sequences.

Invariant: the report is free of faults only if all numbers of the checkpoint are finite and valid, and so is everything
computed from them in each requested format. A format with faults is not measured, since a mean over NaN says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from etude.engine.builtin import BuiltinEngine
from etude.lineage.state import Finished, LineageError, dtype_of, finished_stage
from etude.model import (
    CannotQuantise,
    Transformer,
    checkpoint_doubts,
    checkpoint_faults,
    compute_with,
    load_hf,
    merge_adapters,
    serve,
)
from etude.model.drift import LayerDrift, activation_faults, layer_drift, record_pass
from etude.model.precision.weight_checks import Fault
from etude.pretrain.sft import demonstrations, learnt_and_held_out
from etude.recipe.precision import PrecisionRecipe
from etude.rl.agreement import CHUNK, Agreement, Scored, after, agreement, fed, sampled, trained
from etude.training.compute import DTYPES

FORMATS: tuple[str, ...] = get_args(PrecisionRecipe.model_fields["experts"].annotation)
SEQUENCES = 8
"""Default number of held-out demonstration segments to measure on."""
_SAMPLED = 64
"""Maximum number of tokens that the engine samples after a prompt."""


@dataclass(slots=True)
class FormatReport:
    name: str
    layers: list[LayerDrift] = field(default_factory=list)
    engine: dict[str, Agreement] = field(default_factory=dict)
    """Agreement of trainer and engine, for each way of running the engine: fed in chunks, fed one by one, or
    sampling."""


@dataclass(slots=True)
class NumericsReport:
    run: str
    stage: str
    """Stage that made the checkpoint. Empty, as are `dtype` and `own`, if the checkpoint does not belong to a run."""
    checkpoint: str
    dtype: str
    """The run's compute dtype, used for everything that a format does not round."""
    own: str
    """The number format in which the stage trained its experts."""
    sequences: int = 0
    tokens: int = 0
    formats: list[FormatReport] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Formats whose block sizes do not fit the network's widths, each with the reason."""
    faults: list[Fault] = field(default_factory=list)
    doubts: list[Fault] = field(default_factory=list)
    """Weights with rows that may have been clipped when the checkpoint was quantised."""


def examine(
    run: Path, stage: str | None = None, formats: Sequence[str] = (), sequences: int = SEQUENCES
) -> NumericsReport:
    """Examine the checkpoint of a run's stage in each format: layer drift, and agreement of trainer and engine. Without
    `formats`, every format that fits the network's widths is examined. A requested one that does not fit raises
    CannotQuantise."""
    if unknown := [name for name in formats if name not in FORMATS]:
        raise LineageError(f"there is no format {unknown[0]!r}: expected some of {', '.join(FORMATS)}")
    found = finished_stage(run, stage)
    recipe, folder = found.recipe, found.model
    report = NumericsReport(str(run), found.stage, str(folder), dtype_of(found.paths), recipe.precision.experts)
    report.faults, report.doubts = checkpoint_faults(folder), checkpoint_doubts(folder)
    if report.faults:
        return report
    exact_model = merge_adapters(load_hf(folder, torch.float32))
    tokens = held_out_sequences(found, exact_model.config.max_position_embeddings, sequences)
    report.sequences, report.tokens = len(tokens), sum(map(len, tokens))
    exact = [record_pass(exact_model, one) for one in tokens]
    report.faults = activation_faults(exact)
    if report.faults:
        return report
    for name in formats or FORMATS:
        precision = _in_format(recipe.precision, name)
        try:
            trainer, engine = (_network(folder, DTYPES[report.dtype], precision) for _ in range(2))
        except CannotQuantise as error:
            if formats:
                raise
            report.left_out[name] = str(error)
            continue
        serve(engine)
        passes = [record_pass(trainer, one) for one in tokens]
        answers = {f"{CHUNK} at a time": fed(engine, tokens, CHUNK), "one by one": fed(engine, tokens, 1)}
        if poisoned := activation_faults(passes) + _engine_faults(answers):
            report.faults += [Fault(f"under {name}, {fault.where}", fault.problem) for fault in poisoned]
            continue
        ours = [trained(one, sequence) for one, sequence in zip(passes, tokens, strict=True)]
        beside = {way: agreement(ours, theirs) for way, theirs in answers.items()}
        beside["sampled"] = _on_its_own_tokens(trainer, BuiltinEngine(engine, recipe.engine), tokens)
        report.formats.append(FormatReport(name, layer_drift(trainer, passes, exact_model, exact), beside))
    return report


def examine_checkpoint(folder: Path) -> NumericsReport:
    """Check the numbers that a checkpoint stores. No forward pass is made, so it need not belong to a run."""
    report = NumericsReport(str(folder), "", str(folder), "", "")
    report.faults, report.doubts = checkpoint_faults(folder), checkpoint_doubts(folder)
    return report


def held_out_sequences(found: Finished, positions: int, count: int) -> list[Tensor]:
    """Return the first `count` token sequences of SFT's held-out demonstrations, cut to the context length. They
    resemble what RL trains on, and no stage was trained on them."""
    _, held = learnt_and_held_out(demonstrations(found.paths.root, found.recipe.sft))
    most = min(positions, found.recipe.engine.context)
    segments = [segment.tokens[:most] for trace in held for segment in trace.segments]
    return [torch.from_numpy(tokens).long() for tokens in segments[:count]]


def _engine_faults(answers: Mapping[str, Sequence[Scored]]) -> list[Fault]:
    """Return a fault for each way of feeding the engine whose log-probs are not all finite. The engine can overflow
    where the trainer does not, because it projects queries into the latent space (model/latent_attention.py)."""
    logprobs = {way: torch.cat([one.logprobs_t for one in scored]) for way, scored in answers.items()}
    return [
        Fault(f"the engine's log-probs, {way},", f"are not finite: {int((~said.isfinite()).sum())} of {len(said)}")
        for way, said in logprobs.items()
        if not said.isfinite().all()
    ]


def _on_its_own_tokens(trainer: Transformer, engine: BuiltinEngine, tokens: Sequence[Tensor]) -> Agreement:
    """Return the agreement on tokens that the engine samples after the first half of each sequence."""
    prompts = [sequence[: len(sequence) // 2] for sequence in tokens]
    made = sampled(engine, prompts, _SAMPLED)
    scored = [
        after(trained(record_pass(trainer, sequence), sequence), len(prompt))
        for prompt, (sequence, _) in zip(prompts, made, strict=True)
    ]
    return agreement(scored, [said for _, said in made])


def _network(folder: Path, dtype: torch.dtype, precision: PrecisionRecipe) -> Transformer:
    model = merge_adapters(load_hf(folder, dtype))  # as it would be exported: adapters are never rounded
    compute_with(model, precision)
    return model


def _in_format(recipe: PrecisionRecipe, name: str) -> PrecisionRecipe:
    """Return the run's precision recipe with the experts' format `name`, emulated in plain torch. Settings that the
    format does not support are reset."""
    said = recipe.model_dump() | {"experts": name, "emulate": True, "kernels": "auto"}
    if name == "bf16":
        said |= {"also": [], "emulate": False}
    if name == "nvfp4_tensor":
        said["invariant"] = False
    if not name.startswith("nvfp4"):
        said["reciprocal_bits"] = None
    return PrecisionRecipe.model_validate(said)
