"""Kimi-K2.5: its text part is a network of the family DeepSeek-V3. Vision tower and projector only travel along."""

from etude.model.families.family import Family
from etude.model.families.kimi_k25.config import read, write
from etude.model.families.names import TensorNames

FAMILY = Family(
    name="kimi_k25",
    model_types=("kimi_k25",),
    architecture="KimiK25ForConditionalGeneration",
    read=read,
    write=write,
    names=TensorNames(prefix="language_model.", publishes_heads=True, carried=("vision_tower.", "mm_projector.")),
    section="text_config",
)

__all__ = ["FAMILY"]
