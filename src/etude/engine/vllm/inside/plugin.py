"""vLLM's plugin hook, called in each of its processes. The bridge folder, first on PYTHONPATH, declares it."""

from __future__ import annotations

import os

TRANSFER = "etude"
"""Name of the weight-transfer backend."""


def register() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if TRANSFER in WeightTransferEngineFactory._registry:
        return  # vLLM calls this more than once
    WeightTransferEngineFactory.register_engine(TRANSFER, "etude.engine.vllm.inside.transfer", "StoreTransfer")
    if os.environ.get("ETUDE_VLLM_LATENT_ATTENTION"):
        from etude.engine.vllm.inside.mends import mend_rope_of_latent_attention

        mend_rope_of_latent_attention()
