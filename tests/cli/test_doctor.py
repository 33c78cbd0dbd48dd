"""The whole verb: a table, a picture, JSON, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from safetensors.torch import load_file, save_file
from tests.cli.here import etude
from tests.lineage.examined import examined_run

from etude.cli.numerics import numerics_command
from etude.journal import RunPaths
from etude.lineage import LineageError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    return examined_run(tmp_path_factory.mktemp("examined") / "run")


def numerics(run: RunPaths, *args: str) -> CompletedProcess[str]:
    return etude("doctor", "numerics", run.root, *args)


def test_a_table_and_a_picture_or_json_alone(run: RunPaths) -> None:
    done = numerics(run, "--formats", "bf16, nvfp4", "--sequences", "1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{run.root}, rl: trained in bf16, computes in float32"
    assert lines[1].startswith("1 held-out demonstrations, ")
    assert len([line for line in lines if "one by one" in line]) == 2
    assert lines[-1] == "blessed"
    assert (run.plots / "numerics.png").read_bytes().startswith(b"\x89PNG")
    done = numerics(run, "--stage", "sft", "--formats", "mxfp8", "--sequences", "1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["stage"], found["blessed"], found["faults"]) == ("sft", True, [])
    (one,) = found["formats"]
    assert one["name"] == "mxfp8"
    assert one["layers"][1]["experts"]["mean"] > 0


def test_a_poisoned_checkpoint_is_code_1_and_one_line(tmp_path: Path) -> None:
    poisoned = examined_run(tmp_path / "run")
    file = poisoned.model("rl") / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.experts.0.gate_proj.weight"
    tensors[name][0, 0] = float("nan")
    save_file(tensors, file)
    done = numerics(poisoned, "--json")
    assert done.returncode == 1
    problem = f"{name} has 1 of 2048 numbers that are not finite"
    assert done.stderr == f"etude: {poisoned.model('rl')} is not blessed: {problem}\n"
    assert json.loads(done.stdout)["blessed"] is False
    assert not poisoned.plots.exists()


def test_a_checkpoint_of_anybodys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = examined_run(tmp_path / "run").model("rl")
    assert numerics_command(folder, None, [], None, as_json=False) == 0
    assert capsys.readouterr().out == f"{folder}: a checkpoint; its weights alone are looked at\n\nblessed\n"
    assert not (folder / "plots").exists()
    for stage, formats, sequences in (("rl", [], None), (None, ["bf16"], None), (None, [], 2)):
        with pytest.raises(LineageError, match="is a checkpoint, not a run"):
            numerics_command(folder, stage, formats, sequences, as_json=False)
