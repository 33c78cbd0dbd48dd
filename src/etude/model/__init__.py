"""The network, and reading and writing Hugging Face checkpoints.

Latent or grouped-query attention, dense layers or mixtures of experts, multi-token prediction: a published family
(families/) says which of these parts a network has.
"""

from etude.model.adapters import (
    adapter_size,
    adapters_of,
    begin_adapters,
    changing_buffers,
    merge_adapters,
    with_adapters,
    without_matrices,
)
from etude.model.cache import Cache
from etude.model.checkpoints import (
    AdapterFolder,
    Survey,
    checkpoint_digest,
    checkpoint_doubts,
    checkpoint_faults,
    load_codes,
    load_hf,
    save_adapter,
    save_hf,
    save_trained,
    survey,
)
from etude.model.compiled import compile_parts
from etude.model.config import ModelConfig
from etude.model.errors import (
    CacheOverrun,
    CannotQuantise,
    KernelUnavailable,
    ModelError,
    PoisonedWeights,
    ReplayMismatch,
    UnsupportedCheckpoint,
)
from etude.model.experts import expert_matmul
from etude.model.families import read_config
from etude.model.families.deepseek_v3 import config_from_recipe
from etude.model.head import Head
from etude.model.head_losses import head_agreement, head_cross_entropy, head_divergence, head_logprobs
from etude.model.lora import adapter_state
from etude.model.precision.numerics import Numerics
from etude.model.rope import Rope, Yarn
from etude.model.rounding import compute_with, prepare, restore, round_with, serve, served_state
from etude.model.router import UNKNOWN, Replay
from etude.model.size import Parameters, parameters_of
from etude.model.transformer import MtpHidden, Output, Transformer

__all__ = [
    "UNKNOWN",
    "AdapterFolder",
    "Cache",
    "CacheOverrun",
    "CannotQuantise",
    "Head",
    "KernelUnavailable",
    "ModelConfig",
    "ModelError",
    "MtpHidden",
    "Numerics",
    "Output",
    "Parameters",
    "PoisonedWeights",
    "Replay",
    "ReplayMismatch",
    "Rope",
    "Survey",
    "Transformer",
    "UnsupportedCheckpoint",
    "Yarn",
    "adapter_size",
    "adapter_state",
    "adapters_of",
    "begin_adapters",
    "changing_buffers",
    "checkpoint_digest",
    "checkpoint_doubts",
    "checkpoint_faults",
    "compile_parts",
    "compute_with",
    "config_from_recipe",
    "expert_matmul",
    "head_agreement",
    "head_cross_entropy",
    "head_divergence",
    "head_logprobs",
    "load_codes",
    "load_hf",
    "merge_adapters",
    "parameters_of",
    "prepare",
    "read_config",
    "restore",
    "round_with",
    "save_adapter",
    "save_hf",
    "save_trained",
    "serve",
    "served_state",
    "survey",
    "with_adapters",
    "without_matrices",
]
