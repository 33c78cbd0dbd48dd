"""The core alone: a wheel without extras, in a clean environment, runs the harness, the boxes and the grader."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = (".toml", ".json", ".j2", ".txt", ".md", ".html", ".css", ".js")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Nothing of the checkout may leak into the clean environment.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    return result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves traces in the folder that it builds."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, place)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", place / "src", ignore=ignored)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place / "out", place, cwd=place)
    return next((place / "out").glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_every_data_file(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    wanted = {
        file.relative_to(source).as_posix()
        for file in (source / "etude").rglob("*")
        if file.is_file() and (file.suffix in (".py", *DATA) or file.name == "py.typed")
    }
    assert wanted - held == set()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_core_works_without_torch_ray_transformers_and_matplotlib(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "clean", cwd=tmp_path)
    binaries = tmp_path / "clean" / "bin"
    run(binaries / "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    script = shutil.copy(ROOT / "tests/project/core_alone.py", tmp_path)
    said = run(binaries / "python", "-I", script, tmp_path, cwd=tmp_path).stdout
    found = json.loads(said.splitlines()[-1])
    assert found["present"] == []
    assert found["loaded"] == []
    assert found["stop"] == "finished"
    assert "FAIL" in found["check_said"]
    assert found["pass1"] == 1.0
    assert found["written"] == 3
    assert "Start with" in run(binaries / "etude", "--help", cwd=tmp_path).stdout
    assert run(binaries / "etude", "sandbox", "doctor", cwd=tmp_path).stdout.strip()
    recipe = tmp_path / "own.toml"
    recipe.write_text('schema = 1\nname = "own"\n')
    train = subprocess.run(
        [binaries / "etude", "run", recipe], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert train.returncode == 2
    assert len(train.stderr.splitlines()) == 1
    assert "etude[" in train.stderr
