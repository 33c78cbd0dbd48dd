"""The context of a supervised stage: run folder, recipe, chosen device and dtype, and access to the stage's inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from etude.corpus import Batch, Corpus, open_corpus
from etude.model import (
    Output,
    Transformer,
    UnsupportedCheckpoint,
    begin_adapters,
    checkpoint_digest,
    compile_parts,
    compute_with,
    head_cross_entropy,
    load_hf,
)
from etude.pretrain.errors import PretrainError
from etude.pretrain.memory import fit_passes, pass_of
from etude.recipe import Recipe
from etude.training import Compute, MasterWeights, StepLoss


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

    @property
    def before(self) -> str:
        """The training stage before this one."""
        return self.recipe.before(self.name)

    @property
    def before_folder(self) -> Path:
        """The folder of that stage's model."""
        return self.run / "stages" / self.before / "model"

    def model_before(self) -> Transformer:
        """Load the finished model that this stage starts from: in fp32, but as it is stored if only adapters are
        trained, which it then has."""
        lora = self.recipe.lora
        try:
            model = load_hf(self.before_folder, None if lora.rank else torch.float32)
            return begin_adapters(model, lora, self.recipe.seed)
        except UnsupportedCheckpoint as error:
            raise PretrainError(f"stage {self.name} starts from the model of stage {self.before}: {error}") from error

    def corpus_digest(self) -> str:
        return file_digest(self.run / "corpus" / "manifest.json")

    def model_digest(self) -> str:
        return checkpoint_digest(self.before_folder)

    def masters(self, model: Transformer) -> MasterWeights:
        """Move the model to the device, set up its precision, and return fp32 masters. The model's own parameters
        become the copy in the compute dtype."""
        model = model.to(self.compute.device)
        compute_with(model, self.recipe.precision)
        work = pass_of(self.recipe, self.name, model.config, self.compute.dtype)
        fit_passes(model, self.recipe.compute, work)
        if self.recipe.compute.compile:
            compile_parts(model)
        return MasterWeights(model, self.compute.dtype, self.recipe.compute.offload)


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

    def parts(self, budget: int) -> list[Rows]:
        """Cut the batch into parts of whole rows, each of at most `budget` tokens or a single row."""
        count = max(1, budget // self.tokens.shape[1])
        columns = self.tokens, self.targets, self.weights, self.positions, self.documents
        return [Rows(*part) for part in zip(*(column.split(count) for column in columns), strict=True)]


def next_token_loss(
    model: Transformer,
    rows: Rows,
    weights: torch.Tensor | None = None,
    *,
    total: torch.Tensor | None = None,
    balance_loss: bool = False,
) -> tuple[torch.Tensor, Output]:
    """Return the weighted mean next-token loss, computed in chunks, and the forward pass's output, without logits.
    `total` is the sum of the weights of the batch, if `rows` are a part of one."""
    places = {"positions_bt": rows.positions, "documents_bt": rows.documents}
    output = model(rows.tokens, **places, logits=False, balance_loss=balance_loss)
    weights = rows.weights if weights is None else weights
    hidden = output.hidden_bth.flatten(0, 1)
    return head_cross_entropy(hidden, output.head, rows.targets.flatten(), weights.flatten(), total=total), output


def next_token_losses(model: Transformer, batch: Rows, budget: int, loads: list[torch.Tensor]) -> Iterator[StepLoss]:
    """Compute the next-token loss of a batch in parts of at most `budget` tokens. Replaces the content of `loads` by
    the parts' loads of the experts.

    If the network has a balance loss, its gradient is added, each part's in proportion to the part's weights; it is a
    metric, and no part of the loss's value."""
    loads.clear()
    total, config = batch.weights.sum(), model.config
    coefficient = config.mixture.balance_loss if config.mixture and config.moe_layers else 0.0
    for rows in batch.parts(budget):
        loss, output = next_token_loss(model, rows, total=total, balance_loss=coefficient > 0)
        metrics = {}
        if output.balance_loss is not None:
            share = rows.weights.sum() / total * output.balance_loss
            metrics["balance_loss"] = float(share.detach())
            loss = loss + coefficient * (share - share.detach())
        loads.append(output.load_le)
        yield StepLoss(loss, rows.tokens.numel(), metrics)
