"""A tiny random model, its versions in a store, and an independent forward pass through each."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.model import Transformer, config_from_recipe, load_hf, save_hf
from etude.recipe.model import ModelRecipe
from etude.weights import WeightStore
from etude.weights.torch_bridge import from_state_dict

VOCAB = 61
RECIPE = ModelRecipe(
    hidden_size=32,
    num_hidden_layers=3,
    intermediate_size=48,
    moe_intermediate_size=16,
    n_routed_experts=4,
    n_shared_experts=1,
    num_attention_heads=2,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=8,
    max_position_embeddings=128,
    initializer_range=0.25,
)


def tiny_model(seed: int = 0, vocab_size: int = VOCAB, **changes: Any) -> Transformer:
    recipe = RECIPE.model_copy(update=changes)
    return Transformer(config_from_recipe(recipe, vocab_size)).initialise(seed)


class Versions:
    """Version 0 is the model in `folder` (and published too); every other one has other weights altogether."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self._changes = changes
        self._references: dict[int, Transformer] = {}
        self._lie_in(root)
        save_hf(self.model(0), self.folder)
        self._published = [self._publish(0)]

    def model(self, version: int) -> Transformer:
        return tiny_model(version, **self._changes)

    def copy(self, root: Path) -> Versions:
        """The same versions in a folder of their own."""
        shutil.copytree(self.root, root)
        copied = copy.copy(self)
        copied._lie_in(root)
        return copied

    def _lie_in(self, root: Path) -> None:
        self.root, self.folder, self.location = root, root / "model", root / "weights"
        self.store = WeightStore(self.location)

    def publish(self) -> int:
        return self._publish(self._published[-1] + 1)

    def publish_damaged(self) -> int:
        version = self.publish()
        data = next((self.location / f"v{version:06d}").glob("data-*"))
        raw = bytearray(data.read_bytes())
        raw[len(raw) // 2] ^= 1
        data.write_bytes(bytes(raw))
        return version

    def reference(self, version: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        if version not in self._references:
            model = load_hf(self.folder) if version == 0 else self.model(version)
            self._references[version] = model
        with torch.no_grad():
            output = self._references[version](torch.as_tensor(tokens, dtype=torch.int64)[None])
        experts = output.experts_btlk[0].numpy()
        return output.logits_btv[0].numpy(), experts if experts.shape[1] else None

    def _publish(self, version: int) -> int:
        self.store.publish(version, from_state_dict(self.model(version).swapped_state()))
        self._published = [*getattr(self, "_published", []), version]
        return version
