"""DeepSeek-V3 and Kimi-K2: latent attention, a mixture of experts with a sigmoid router, MTP heads.

A recipe's `[model]` section describes a network of this family.
"""

from etude.model.families.deepseek_v3.config import config_from_recipe, read, write
from etude.model.families.family import Family
from etude.model.families.names import TensorNames

FAMILY = Family(
    name="deepseek_v3",
    model_types=("deepseek_v3", "kimi_k2"),
    architecture="DeepseekV3ForCausalLM",
    read=read,
    write=write,
    names=TensorNames(publishes_heads=True),
)

__all__ = ["FAMILY", "config_from_recipe"]
