"""The scripts of a task directory also work where Étude is not at hand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from etude.tasks import Task, apply_diff, read_files, reference_diff


@pytest.mark.parametrize(("solved", "reward"), [(False, "0\n"), (True, "1\n")])
def test_test_sh_writes_the_reward(train_tasks: list[Task], tmp_path: Path, solved: bool, reward: str) -> None:
    task = train_tasks[0]
    files = {path: data.decode() for path, data in read_files(task.directory).items()}
    if solved:
        files = apply_diff(files, reference_diff(task))
    (tmp_path / "work").mkdir()
    for path, text in files.items():
        (tmp_path / "work" / path).write_text(text)
    file = tmp_path / "logs/verifier/reward.txt"
    env = {**os.environ, "WORKDIR": str(tmp_path / "work"), "REWARD_FILE": str(file)}
    done = subprocess.run([task.directory / "tests/test.sh"], env=env, capture_output=True, text=True, check=False)
    assert file.read_text() == reward, done
    assert done.returncode == (0 if solved else 1)
