"""Read and write Hugging Face checkpoints of the published families.

A folder is surveyed by its headers, a network is filled tensor by tensor, and written in shards without copies. Files
have published names and one tensor per expert, the network one stacked tensor per layer (families/names.py). Quantised
weights (see `precision/layout.py`) are dequantised when a network is built; `load_codes` returns them as codes and
scales. Only the routed experts can be written quantised. Adapters have folders of their own (peft.py).
"""

from etude.model.checkpoints.peft import AdapterFolder, save_adapter, save_trained
from etude.model.checkpoints.reading import (
    checkpoint_digest,
    checkpoint_doubts,
    checkpoint_faults,
    load_codes,
    load_hf,
)
from etude.model.checkpoints.survey import Survey, survey
from etude.model.checkpoints.writing import save_hf

__all__ = [
    "AdapterFolder",
    "Survey",
    "checkpoint_digest",
    "checkpoint_doubts",
    "checkpoint_faults",
    "load_codes",
    "load_hf",
    "save_adapter",
    "save_hf",
    "save_trained",
    "survey",
]
