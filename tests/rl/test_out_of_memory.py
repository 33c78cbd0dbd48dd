"""A trainer of RL that really runs out of memory: one line, no version, and a step with what the line says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

ROOM = 500 * 2**20
CHILD = f"""
import json, resource, sys
from dataclasses import asdict
from pathlib import Path
import numpy as np
import torch
from tests.rl.make import VOCAB, open_trainer, tiny_recipe
from etude.recipe import Recipe
from etude.rl.batch import TrainingGroup, TrainingMember
from etude.tasks import Judgement, Verdict
from etude.trace import Segment, SegmentKind, StopCause, Trace
from etude.training import OutOfMemory
LENGTH = 4096
plain = tiny_recipe(microbatch_tokens=int(sys.argv[2]), group=16, prompts_per_step=1).model_dump(by_alias=True)
plain['model']['max_position_embeddings'] = plain['engine']['context'] = LENGTH
plain['compute']['checkpoint_activations'] = sys.argv[3]
recipe = Recipe.model_validate(plain)

def member(number):
    random = np.random.default_rng(number)
    sampled = np.arange(LENGTH) >= 16
    segment = Segment(0, None, SegmentKind.START, random.integers(0, VOCAB, LENGTH).astype(np.int32), sampled,
        np.full(LENGTH, -6.0, np.float32), np.where(sampled, 0, -1).astype(np.int32), None)
    judgement = Judgement.PASS if number % 2 else Judgement.FAIL
    trace = Trace(str(number), 'task', 'train', '0', 0, 'policy', 0, [segment], stop=StopCause.FINISHED)
    return TrainingMember(trace, Verdict(judgement, ''))

trainer = open_trainer(Path(sys.argv[1]), recipe)
torch.ones(64, 64) @ torch.ones(64, 64)
space = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + {ROOM}
resource.setrlimit(resource.RLIMIT_AS, (space, space))
try:
    trainer.train(0, [TrainingGroup(0, 0, tuple(member(number) for number in range(16)))])
    print(json.dumps([trainer.store.versions(), '']))
except OutOfMemory as error:
    print(json.dumps([trainer.store.versions(), str(error)]))
"""


def limited(folder, tokens: int, checkpointed: str) -> tuple[list[int], str]:
    command = [sys.executable, "-c", CHILD, str(folder), str(tokens), checkpointed]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    versions, line = json.loads(done.stdout.splitlines()[-1])
    return versions, line


@pytest.mark.slow
def test_a_step_that_runs_out_of_memory_is_taken_with_the_change_that_it_asks_for(tmp_path) -> None:
    versions, line = limited(tmp_path, 2**16, "none")
    assert versions == [0]
    assert line.startswith("step 0 of RL ran out of memory on cpu, asked for ")
    fields = re.search(r"set (.*), which takes", line)
    assert fields is not None, line
    change = dict(field.split("=") for field in fields[1].split())
    checkpointed = json.loads(change.get("compute.checkpoint_activations", '"none"'))
    assert limited(tmp_path, int(change.get("rl.microbatch_tokens", 2**16)), checkpointed) == ([0, 1], "")
