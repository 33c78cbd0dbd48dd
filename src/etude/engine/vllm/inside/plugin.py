"""vLLM's plugin hook, called in each of its processes. The bridge folder, first on PYTHONPATH, declares it."""

from __future__ import annotations

TRANSFER = "etude"
"""Name of the weight-transfer backend."""


def register() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if TRANSFER not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(TRANSFER, "etude.engine.vllm.inside.transfer", "StoreTransfer")
