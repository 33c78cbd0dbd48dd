from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from etude.tasks import GateResult, Judgement, Task, TaskError, gate_tasks, read_evidence, read_task, reference_diff

from .conftest import Boxes


def test_the_gate_decides_keeps_its_evidence_and_goes_on(boxes: Boxes, train_tasks: list[Task], tmp_path: Path) -> None:
    evidence = tmp_path / "gate.jsonl"
    directory = tmp_path / "useless"
    shutil.copytree(train_tasks[1].directory, directory)
    (directory / "solution/patch.diff").write_text("")
    useless = replace(read_task(directory, {train_tasks[1].split}), id="useless")

    async def run(tasks: list[Task], runs: int) -> dict[str, GateResult]:
        async with boxes() as sandboxes:
            return await gate_tasks(tasks, sandboxes, evidence, runs=runs)

    first = asyncio.run(run([train_tasks[0], useless], 2))
    assert first[train_tasks[0].id].survived
    assert not first["useless"].survived
    assert first["useless"].decided
    with evidence.open("a") as file:
        file.write('{"task": "torn')
    again = asyncio.run(run([train_tasks[0], train_tasks[2]], 2))
    assert again[train_tasks[0].id] == first[train_tasks[0].id]
    assert again[train_tasks[2].id].survived
    assert {result.task for result in read_evidence(evidence)} == {*first, train_tasks[2].id}


def test_an_error_of_ours_neither_survives_nor_decides() -> None:
    result = GateResult("t", "d", Judgement.FAIL, (Judgement.PASS, Judgement.ERROR), 0.1)
    assert not result.survived
    assert not result.decided


def test_a_task_without_reference_is_named(train_tasks: list[Task], tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="expected the reference solution"):
        reference_diff(replace(train_tasks[0], directory=tmp_path))
