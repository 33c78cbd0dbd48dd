"""Llama: grouped-query attention and dense layers."""

from etude.model.families.family import Family
from etude.model.families.llama.config import read, write
from etude.model.families.names import TensorNames

FAMILY = Family(
    name="llama",
    model_types=("llama",),
    architecture="LlamaForCausalLM",
    read=read,
    write=write,
    names=TensorNames(),
)

__all__ = ["FAMILY"]
