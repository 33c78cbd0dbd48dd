"""One run folder in which all four stages are finished, undisturbed."""

import pickle
import shutil

import pytest
import torch
from tests.shared import made_once, shared_folder

from etude.pretrain import run_stage

from .make import make_run

STAGES = ("pretrain", "long", "mtp", "sft")


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """(run folder, recipe, last progress of each stage). Read only, since all workers share it."""

    def make(folder):
        run, recipe = make_run(folder)
        last = {}
        for stage in STAGES:
            for progress in run_stage(stage, run, recipe):
                last[stage] = progress
        (folder / "told.pickle").write_bytes(pickle.dumps((run.name, recipe, last)))

    folder = made_once(shared_folder(tmp_path_factory) / "pretrained", make)
    name, recipe, last = pickle.loads((folder / "told.pickle").read_bytes())
    return folder / name, recipe, last


@pytest.fixture
def before(finished, tmp_path):
    """A function: a copy of the run folder in which `stage` and later ones have not begun."""
    run, recipe, _ = finished

    def made(stage):
        copy = tmp_path / f"before-{stage}"
        shutil.copytree(run, copy)
        for later in STAGES[STAGES.index(stage) :]:
            shutil.rmtree(copy / "stages" / later)
        return copy, recipe

    return made


@pytest.fixture(autouse=True)
def _threads():
    kept = torch.get_num_threads()
    yield
    torch.set_num_threads(kept)
