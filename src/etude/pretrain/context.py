"""The context of a supervised stage: run folder, recipe, chosen device and dtype, and access to the stage's inputs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from etude.corpus import Batch, Corpus, open_corpus
from etude.model import Output, Transformer, UnsupportedCheckpoint, checkpoint_digest, compute_with, load_hf
from etude.pretrain.errors import PretrainError
from etude.recipe import Recipe
from etude.training import Compute, MasterWeights, linear_cross_entropy


@dataclass(frozen=True, slots=True)
class StageContext:
    run: Path
    recipe: Recipe
    compute: Compute
    name: str

    @property
    def folder(self) -> Path:
        return self.run / "stages" / self.name

    def corpus(self) -> Corpus:
        return open_corpus(self.run / "corpus")

    def model_of(self, stage: str) -> Transformer:
        """Load an earlier stage's finished model in fp32."""
        folder = self.run / "stages" / stage / "model"
        try:
            return load_hf(folder, torch.float32)
        except UnsupportedCheckpoint as error:
            raise PretrainError(f"stage {self.name} starts from the model of stage {stage}: {error}") from error

    def corpus_digest(self) -> str:
        return file_digest(self.run / "corpus" / "manifest.json")

    def model_digest(self, stage: str) -> str:
        return checkpoint_digest(self.run / "stages" / stage / "model")

    def masters(self, model: Transformer) -> MasterWeights:
        """Move the model to the device, set up its precision, and return fp32 masters. The model's own parameters
        become the copy in the compute dtype."""
        model = model.to(self.compute.device)
        compute_with(model, self.recipe.precision)
        return MasterWeights(model, self.compute.dtype)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of an input file, which a stage records to tell whether the input has changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Rows:
    """A `Batch` of packed rows as torch tensors on the compute device."""

    tokens: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor
    documents: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, device: str) -> Rows:
        return cls(*(torch.from_numpy(array).to(device) for array in batch))


def next_token_loss(model: Transformer, rows: Rows, weights: torch.Tensor | None = None) -> tuple[torch.Tensor, Output]:
    """Return the weighted mean next-token loss, computed in chunks, and the forward pass's output, without logits."""
    output = model(rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents, logits=False)
    weights = rows.weights if weights is None else weights
    hidden = output.hidden_bth.flatten(0, 1)
    return linear_cross_entropy(hidden, model.head_vh, rows.targets.flatten(), weights.flatten()), output
