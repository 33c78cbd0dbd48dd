"""Tasks of ours go out with a test.sh: here it is run as others run it, in a box, by the reward that it leaves."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.needs import needs

from etude.tasks import Split, Task, Verdict, make_tasks, open_source, read_task, reference_diff
from etude.tasks.formats.folders import export_harbor

from ..cheats.playing import written
from ..conftest import Grade, by_name


def graded_by_others(grade: Grade, task: Task, folder: Path) -> dict[str, Verdict]:
    (place,) = export_harbor([task], folder).written
    assert export_harbor([task], folder).written == [place]
    foreign = replace(read_task(place, set(Split)), verifier={"type": "harbor"})

    return by_name(grade, foreign, {"reference": reference_diff(task), "nothing": ""})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pytest", "unittest", "node", "script", "make", "cases"])
def test_the_same_solutions_pass_elsewhere(grade: Grade, tmp_path: Path, kind: str, train_tasks: list[Task]) -> None:
    own = tmp_path / "own"
    if kind == "cases":
        task = train_tasks[0]
        shutil.copytree(task.directory, own / task.directory.name)
        task = read_task(own / task.directory.name, set(Split))
        (task.directory / "tests/test.sh").unlink()
    elif kind == "pytest":
        (task,) = written(own, "pytest-prices")
    elif kind in ("script", "make"):
        made = make_tasks(open_source("devops"), Split.TRAIN, 10, 1, own)
        task = next(task for task in made if task.kind.startswith("make") == (kind == "make"))
    else:
        made = make_tasks(open_source("debugging"), Split.TRAIN, 10, 1, own)
        task = next(task for task in made if task.verifier["runner"] == kind)
    found = graded_by_others(grade, task, tmp_path / "out")
    assert found["reference"].passed, found["reference"]
    assert str(found["nothing"].judgement) == "fail", found["nothing"]
    assert "reward 0" in found["nothing"].reason
    assert not found["reference"].evidence.sealed


@needs("patch")
def test_what_goes_out_can_be_solved_by_its_script(tmp_path: Path) -> None:
    (task,) = written(tmp_path / "own", "unittest-spans")
    (place,) = export_harbor([task], tmp_path / "out").written
    work = place / "environment/repo"
    script = (place / "solution/solve.sh").read_text().replace("cd /work", f"cd {work}")
    (place / "solution/solve.sh").write_text(script)
    subprocess.run([place / "solution/solve.sh"], check=True, capture_output=True)
    solved = subprocess.run(["diff", "-r", work, task.directory / "environment/repo"], capture_output=True, check=False)
    assert solved.returncode == 1
    rewards = tmp_path / "logs/reward.txt"
    env = {"PATH": "/usr/bin:/bin", "WORKDIR": str(work), "REWARD_FILE": str(rewards)}
    subprocess.run([place / "tests/test.sh"], env=env, check=True, capture_output=True)
    assert rewards.read_text() == "1\n"
