"""The trainer's network at a version: what vLLM's log-probs are compared with.

It reads its weights where the version lies in memory, so it takes no memory of its own. It is not needed any more once
the trainer publishes a probe's log-probs with each version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from etude.engine.protocol import FloatArray, IntArray
from etude.model import Transformer, load_hf
from etude.model.checkpoints.slots import slots_of, without_memory
from etude.model.published_state import published_state
from etude.weights import Tensors
from etude.weights.torch_bridge import StateViews, to_torch


class Reference:
    def __init__(self, model: Transformer) -> None:
        self._model = model
        self.config = model.config
        # vLLM's main network has no MTP heads.
        self.slots = {name: slot for name, slot in slots_of(model).items() if not slot.parameter.startswith("mtp.")}
        self._dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}

    @classmethod
    def of_folder(cls, folder: Path, dtype: torch.dtype) -> Reference:
        return cls(load_hf(folder, dtype))

    def tensors(self) -> Tensors:
        return StateViews(published_state(self.config, self._model.state_dict()))

    def at(self, tensors: Tensors) -> Reference:
        """Return the same network, but for its MTP heads, with the tensors of a version, in their memory."""
        model = without_memory(replace(self.config, num_nextn_predict_layers=0))
        # Tensors of the dtype that it computes in are not copied.
        mine = {name: to_torch(tensor).to(self._dtypes[name]) for name, tensor in tensors.items()}
        model.load_state_dict(mine, assign=True)
        return Reference(model)

    def logprobs(self, rows: IntArray, temperatures: Sequence[float] | None = None) -> FloatArray:
        """Return the log-prob of every id but the first of each row [rows, ids - 1], at a temperature for each row."""
        ids = torch.as_tensor(rows, dtype=torch.int64)
        with torch.no_grad():
            logits = self._model(ids).logits_btv[:, :-1].float()
        if temperatures is not None:
            logits = logits / torch.tensor(temperatures)[:, None, None]
        logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
        return np.asarray(logprobs.numpy(), np.float32)
