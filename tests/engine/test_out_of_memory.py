"""An engine without enough memory says which field to lower."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.engine.tiny import tiny_model

from etude.engine.builtin.memory import engine_memory
from etude.engine.builtin.service import EngineService
from etude.engine.protocol import EngineOutOfMemory, GenerateRequest, Sampling
from etude.model import adapter_state, begin_adapters, save_hf
from etude.recipe.acting import EngineRecipe
from etude.recipe.lora import LoraRecipe
from etude.training import OutOfMemory

CHILD = """
import resource, sys
from etude.engine.builtin.memory import engine_memory
from etude.engine.builtin.service import EngineService
from etude.training import OutOfMemory
space = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + 300 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (space, space))
try:
    EngineService(sys.argv[1], {'slots': 64, 'cache_slots': 20000, 'context': 64})
    print('started')
except OutOfMemory as error:
    print(error)
"""


def test_a_cache_that_does_not_fit_is_named_with_the_field_to_lower(tmp_path) -> None:
    save_hf(tiny_model(), tmp_path / "model")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the start of the engine ran out of memory on cpu, asked for ")
    assert "cache " in done.stdout
    assert "; set engine.cache_slots=" in done.stdout


def test_an_engine_that_swaps_adapters_holds_its_base_once() -> None:
    model, lora = tiny_model().bfloat16(), LoraRecipe(rank=4, targets=["attention", "experts"])
    head = model.config.vocab_size * model.config.hidden_size * 4  # in fp32 besides
    begin_adapters(model, lora, dtype=torch.bfloat16)
    adapters = sum(tensor.nbytes for tensor in adapter_state(model).values())
    planned = engine_memory(EngineRecipe(), model.config, torch.bfloat16, lora=lora)
    assert planned.weights == sum(parameter.nbytes for parameter in model.parameters()) + head
    assert planned.versions == 2 * adapters


def test_a_step_without_memory_ends_the_engine_and_every_request_says_so(tmp_path, monkeypatch) -> None:
    save_hf(tiny_model(), tmp_path / "model")

    async def run() -> None:
        engine = EngineService(tmp_path / "model", {"slots": 4, "cache_slots": 0, "context": 64})
        monkeypatch.setattr("etude.engine.builtin.engine.BuiltinEngine.step", lambda self: torch.empty(2**60))
        request = GenerateRequest("one", np.arange(4, dtype=np.int32), Sampling(4, ()))
        waiting = asyncio.create_task(engine.generate(request))
        ended: object = None
        while not isinstance(ended, Exception):
            (ended,) = await asyncio.gather(engine.stats(), return_exceptions=True)
        assert isinstance(ended, OutOfMemory)
        assert str(ended).startswith("a step of the engine ran out of memory on cpu")
        assert "engine.slots=2" in str(ended)
        with pytest.raises(EngineOutOfMemory, match=r"request one: a step of the engine ran out of memory on cpu"):
            await waiting
        await engine.begin(request, "consumer", first=True)
        (refusal,) = (await engine.pull("consumer", 0)).items
        assert isinstance(refusal.error, EngineOutOfMemory)
        await engine.shutdown()

    asyncio.run(run())
