"""The probe decides, the recipe overrules it, and a stage remembers."""

import os

import pytest
import torch

from etude.recipe.compute import ComputeRecipe
from etude.training import TrainingError, choose_compute
from etude.training.compute import remembered_compute


def test_the_probe_names_what_it_measured():
    chosen = choose_compute(ComputeRecipe(threads=1))
    assert chosen.dtype in (torch.float32, torch.bfloat16)
    assert "GFLOP/s" in str(chosen)
    assert chosen.threads == 1


def test_the_recipe_overrules_the_probe():
    chosen = choose_compute(ComputeRecipe(dtype="float32", threads=0))
    assert (chosen.dtype, chosen.threads) == (torch.float32, len(os.sched_getaffinity(0)))
    assert "recipe" in chosen.reason
    assert chosen.accelerator == ""


def test_a_stage_computes_as_it_began(tmp_path):
    path = tmp_path / "stage" / "compute.json"
    first = remembered_compute(path, ComputeRecipe(dtype="bfloat16", threads=1))
    assert remembered_compute(path, ComputeRecipe(dtype="float32", threads=2)) == first


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_one_clear_error():
    with pytest.raises(TrainingError, match="no CUDA device"):
        choose_compute(ComputeRecipe(device="cuda"))
