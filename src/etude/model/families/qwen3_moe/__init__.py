"""Qwen3 with mixtures of experts: a softmax router without biases, no shared expert."""

from etude.model.families.family import Family
from etude.model.families.names import TensorNames
from etude.model.families.qwen3_moe.config import read, write

FAMILY = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    architecture="Qwen3MoeForCausalLM",
    read=read,
    write=write,
    names=TensorNames(),
)

__all__ = ["FAMILY"]
