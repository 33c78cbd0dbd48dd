"""Qwen3: grouped-query attention with normed queries and keys, dense layers."""

from etude.model.families.family import Family
from etude.model.families.names import TensorNames
from etude.model.families.qwen3.config import read, write

FAMILY = Family(
    name="qwen3",
    model_types=("qwen3",),
    architecture="Qwen3ForCausalLM",
    read=read,
    write=write,
    names=TensorNames(),
)

__all__ = ["FAMILY"]
