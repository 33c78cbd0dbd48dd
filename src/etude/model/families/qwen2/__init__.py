"""Qwen2 and Qwen2.5: grouped-query attention with biases, dense layers."""

from etude.model.families.family import Family
from etude.model.families.names import TensorNames
from etude.model.families.qwen2.config import read, write

FAMILY = Family(
    name="qwen2",
    model_types=("qwen2",),
    architecture="Qwen2ForCausalLM",
    read=read,
    write=write,
    names=TensorNames(),
)

__all__ = ["FAMILY"]
