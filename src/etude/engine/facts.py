"""What must be known of a checkpoint before an engine opens it. It runs as a service of its own, so that whoever asks
need not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etude.model import UnsupportedCheckpoint, survey
from etude.recipe.compute import ComputeRecipe
from etude.training.compute import choose_compute


@dataclass(frozen=True, slots=True)
class Facts:
    positions: int
    """Longest sequence that the model knows, in tokens."""
    parameters: int
    dtype: str
    """The compute dtype that suits this machine, or that was asked for."""


class CheckpointFacts:
    def find(self, folder: Path, vocab_size: int, compute: ComputeRecipe) -> Facts:
        """Raises UnsupportedCheckpoint if no network can be built from the folder."""
        found = survey(folder, vocabulary=vocab_size)
        problems = found.problems if found.weights else (*found.problems, "has no .safetensors file")
        if problems:
            raise UnsupportedCheckpoint(f"{folder} {'; '.join(problems)}")
        dtype = choose_compute(compute).dtype_name
        return Facts(found.config.max_position_embeddings, found.parameters.total, dtype)
