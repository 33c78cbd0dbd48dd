"""The supervised stages: base pretraining, context extension, self-distillation of MTP heads, SFT on demonstrations.

Each public name is loaded on first use, so that importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.pretrain.context import StageContext
    from etude.pretrain.errors import PretrainError
    from etude.pretrain.service import StageService
    from etude.pretrain.stage import StagePlan, run_stage

_HOME = {
    "PretrainError": "errors",
    "StageContext": "context",
    "StagePlan": "stage",
    "StageService": "service",
    "run_stage": "stage",
}

__all__ = ["PretrainError", "StageContext", "StagePlan", "StageService", "run_stage"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
