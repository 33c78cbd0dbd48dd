"""Records which experts each position was routed to, in vLLM's worker.

vLLM returns routed experts only with its newer model runner, which needs Triton; here they are taken from its routers'
own hook. They are kept beside the KV cache, by the same slots, so that a position whose entry is read from the prefix
cache has the experts that computed the entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from etude.engine.protocol import UNKNOWN_EXPERT

_SUFFIX = 9
"""Length of what vLLM appends to a request's id: a dash and eight characters."""


@dataclass(slots=True)
class _Recorded:
    """The experts of a request's positions so far."""

    parts: list[NDArray[np.uint16]] = field(default_factory=list)
    positions: int = 0

    def add(self, part: NDArray[np.uint16]) -> None:
        self.parts.append(part)
        self.positions += len(part)


class RoutedExperts:
    def __init__(self, runner: Any) -> None:
        """`runner` is the worker's model runner, whose model and KV cache are there."""
        self._runner = runner
        sources = sorted(_sources(runner.get_model()), key=lambda module: module.layer_id)
        self._step: list[NDArray[np.uint16] | None] = [None] * len(sources)
        """Experts of the step that is being computed, by layer."""
        for layer, source in enumerate(sources):
            source.router.set_capture_fn(partial(self._capture, layer))
        self._top_k = sources[0].router.top_k if sources else 0
        self._slots = np.zeros((0, len(sources), self._top_k), np.uint16)
        self._requests: dict[str, _Recorded] = {}
        if sources:
            table = runner.input_batch.block_table[0]
            self._block = table.block_size
            cache = runner.kv_cache_config
            slots = cache.num_blocks * cache.kv_cache_groups[0].kv_cache_spec.block_size
            self._slots = np.full((slots, len(sources), self._top_k), UNKNOWN_EXPERT, np.uint16)
            self._execute, runner.execute_model = runner.execute_model, self._execute_model

    @property
    def shape(self) -> tuple[int, int]:
        """Number of layers with experts, and of experts of a token."""
        return len(self._step), self._top_k

    def take(self, request_id: str) -> NDArray[np.uint16]:
        """Return the experts of the positions that were computed for a request [positions, layers, k], and forget
        them."""
        found = self._requests.pop(request_id, None)
        return np.concatenate(found.parts) if found is not None else self._slots[:0]

    def _capture(self, layer: int, experts: torch.Tensor) -> None:
        self._step[layer] = experts.numpy().astype(np.uint16)

    def _execute_model(self, scheduled: Any, *arguments: Any, **options: Any) -> Any:
        self._step = [None] * len(self._step)
        result = self._execute(scheduled, *arguments, **options)
        if self._step and all(layer is not None for layer in self._step):
            self._record(scheduled.num_scheduled_tokens)
        return result

    def _record(self, counts: dict[str, int]) -> None:
        batch = self._runner.input_batch
        experts = np.stack(self._step, 1)  # type: ignore[arg-type]
        tables, at = batch.block_table[0].get_numpy_array(), 0
        for row, name in enumerate(batch.req_ids):
            start, count = int(batch.num_computed_tokens_cpu[row]), counts[name]
            new = experts[at : at + count]
            at += count
            self._slots[self._slots_of(tables[row], start, start + count)] = new
            recorded = self._requests.setdefault(name[:-_SUFFIX], _Recorded())
            if recorded.positions != start:
                # The beginning was read from the prefix cache, or later positions were drafts that failed.
                recorded = self._requests[name[:-_SUFFIX]] = _Recorded()
                recorded.add(self._slots[self._slots_of(tables[row], 0, start)])
            recorded.add(new)

    def _slots_of(self, table: NDArray[np.int32], start: int, end: int) -> NDArray[np.int64]:
        positions = np.arange(start, end)
        slots: NDArray[np.int64] = table[positions // self._block] * np.int64(self._block) + positions % self._block
        return slots


def _sources(model: torch.nn.Module) -> list[Any]:
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    return [module for module in model.modules() if isinstance(module, MoERunner)]


class WorkerCalls:
    """Mixed into vLLM's worker, whose methods the host calls by name."""

    model_runner: Any
    _etude_experts: RoutedExperts

    def etude_record_experts(self) -> list[int]:
        self._etude_experts = RoutedExperts(self.model_runner)
        return list(self._etude_experts.shape)

    def etude_take_experts(self, requests: list[str]) -> list[bytes]:
        return [self._etude_experts.take(request_id).tobytes() for request_id in requests]
