"""GLM-4.5 and GLM-4.6: grouped-query attention with a partial rotation, mixtures as DeepSeek-V3's, MTP heads."""

from etude.model.families.family import Family
from etude.model.families.glm4_moe.config import read, write
from etude.model.families.names import TensorNames

FAMILY = Family(
    name="glm4_moe",
    model_types=("glm4_moe",),
    architecture="Glm4MoeForCausalLM",
    read=read,
    write=write,
    names=TensorNames(publishes_heads=True),
)

__all__ = ["FAMILY"]
