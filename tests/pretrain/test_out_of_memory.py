"""A stage that really runs out of memory: one line, nothing lost, and with what the line says it goes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from etude.model import config_from_recipe
from etude.pretrain import memory, run_stage
from etude.recipe import save_recipe

from .make import make_run, small_recipe

ROOM = 400 * 2**20
CHILD = f"""
import json, resource, sys
from pathlib import Path
from etude.pretrain import run_stage
from etude.recipe import load_recipe
from etude.training import OutOfMemory
import torch
torch.ones(64, 64) @ torch.ones(64, 64)
space = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + {ROOM}
resource.setrlimit(resource.RLIMIT_AS, (space, space))
steps = []
try:
    for progress in run_stage('sft', Path(sys.argv[1]), load_recipe(Path(sys.argv[2]), sys.argv[3:])):
        steps.append(progress['step'])
    print(json.dumps([steps, '']))
except OutOfMemory as error:
    print(json.dumps([steps, str(error)]))
"""


def test_the_advice_is_about_what_auto_chose_while_there_was_room(monkeypatch) -> None:
    """Once memory ran out, little is free, and the same rule would say that the layers were checkpointed."""
    recipe = small_recipe(Path("code"), sft={"batch": 64})
    config = config_from_recipe(recipe.model, recipe.tokenizer.vocab_size)
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**20)
    monkeypatch.setattr(memory, "own_limit", lambda device: 2**40)
    line = memory.told(recipe, "sft", config, torch.float32)
    assert 'set compute.checkpoint_activations="blocks", which takes' in line
    monkeypatch.setattr(memory, "own_limit", lambda device: 2**21)
    assert "; set sft.microbatch_tokens=64, which takes" in memory.told(recipe, "sft", config, torch.float32)


@pytest.mark.slow
def test_sft_that_runs_out_of_memory_goes_on_with_the_change_that_it_asks_for(tmp_path) -> None:
    wide = {"batch": 1024, "microbatch_tokens": 2**20, "steps": 3, "log_every": 1, "checkpoint_seconds": 0.0}
    run, small = make_run(tmp_path, sft=wide)
    compute = small.compute.model_copy(update={"dtype": "float32", "checkpoint_activations": "none"})
    recipe = small.model_copy(update={"compute": compute, "stages": ["pretrain", "sft"]})
    for _ in run_stage("pretrain", run, recipe):
        pass
    for progress in run_stage("sft", run, recipe):
        if progress["step"] == 2:  # the checkpoint of step 1 is written, and that of this one not yet
            break
    file = tmp_path / "recipe.toml"
    save_recipe(recipe, file)

    def limited(*overrides: str) -> tuple[list[int], str]:
        command = [sys.executable, "-c", CHILD, str(run), str(file), *overrides]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        steps, line = json.loads(done.stdout.splitlines()[-1])
        return steps, line

    steps, line = limited()
    assert steps == [1], "it resumed, and then had no room for the next step"
    assert re.fullmatch(
        r"stage sft ran out of memory on cpu, asked for .* MB more: it takes about .* \(.*\); set .*", line
    )
    fields = re.search(r"set (.*), which takes", line)
    assert fields is not None, line
    assert {field.partition("=")[0] for field in fields[1].split()} <= {
        "compute.checkpoint_activations",
        "sft.microbatch_tokens",
    }
    assert limited(*fields[1].split()) == ([1, 2, 3, 3], "")
