"""The worker's side of a weight update: maps the version that the service holds in memory, and loads whole layers.

Of a fused module (q, k and v; gate and up) vLLM loads a part without an error, and leaves the rest uninitialised. So
every tensor is verified before it is loaded, and every module after: it has all its elements, or none.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from etude.engine.vllm.inside.mends import left_out, mend_packed_experts, mend_tied_head

# It warns of every module that an update leaves alone. What must not be left alone is checked here.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


_LAYER = re.compile(r"(.*?\.\d+\.).*")


class UpdateBroken(RuntimeError):
    """An update would leave the model with wrong weights. vLLM cannot go back to the old ones, so the worker ends."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    pass


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    path: str = ""
    """File of the version's bytes: memory that the service holds."""
    groups: list[list[dict[str, Any]]] = field(default_factory=list)
    """All tensors of each layer that changed: name, dtype, shape; offset and length of its bytes, and their xxh3-128,
    one of each `chunk` of them."""
    chunk: int = 0


class StoreTransfer(WeightTransferEngine[InitInfo, UpdateInfo]):
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = True

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        self._loaded: set[str] = set()
        """Beginnings of the names of the layers that were loaded."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        with open(update_info.path, "rb") as file:  # noqa: PTH123
            whole = mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size, prot=mmap.PROT_READ)
        memory = memoryview(whole)
        for group in update_info.groups:
            self._loaded.add(_LAYER.sub(r"\1", group[0]["name"]))
            loaded = self.model.load_weights((row["name"], _verified(row, memory, update_info.chunk)) for row in group)
            if loaded is not None and not loaded:
                raise UpdateBroken(f"vLLM's model has none of the tensors {group[0]['name']!r} and others")
        if not left_out("partial_module"):
            self._require_whole_modules()

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        mend_packed_experts(self.model, self._loaded)
        mend_tied_head(self.model)

    def shutdown(self) -> None:
        pass

    def _require_whole_modules(self) -> None:
        for name, module in self.model.named_modules():
            info = get_layerwise_info(module)
            # Rows that pad a vocabulary are never loaded; its module fills them.
            if isinstance(module, VocabParallelEmbedding) or not info.can_load():
                continue
            if 0 < info.load_numel < (info.load_numel_total or 0):
                raise UpdateBroken(
                    f"{name} was sent {info.load_numel} of its {info.load_numel_total} elements; the rest would be "
                    "uninitialised memory"
                )


def _verified(row: dict[str, Any], memory: memoryview, chunk: int) -> torch.Tensor:
    raw = memory[row["offset"] : row["offset"] + row["length"]]
    if [xxhash.xxh3_128_hexdigest(raw[at : at + chunk]) for at in range(0, len(raw), chunk)] != row["sums"]:
        raise UpdateBroken(f"tensor {row['name']} does not have the bytes that were published")
    return torch.frombuffer(bytearray(raw), dtype=getattr(torch, row["dtype"])).reshape(row["shape"])
