"""The supervised stages: base pretraining, context extension, self-distillation of MTP heads, SFT on demonstrations."""

from etude.pretrain.context import StageContext
from etude.pretrain.errors import PretrainError
from etude.pretrain.service import StageService
from etude.pretrain.stage import StagePlan, run_stage

__all__ = ["PretrainError", "StageContext", "StagePlan", "StageService", "run_stage"]
