"""Dockerfiles: built from sound and from broken products, and what they make is looked at from outside."""

from __future__ import annotations

import json

import pytest

from etude.tasks import Judgement, Task

from ..conftest import Grade
from .grading import graded, one_task, solution


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return one_task("images", tmp_path_factory.mktemp("images"))


@pytest.mark.slow
def test_ways_to_cheat_fail(grade: Grade, task: Task) -> None:
    honest = solution(task)["Dockerfile"]
    products = json.loads((task.directory / "tests/products.json").read_text())
    seen = next(product for product in products if product["name"] == "as it is")
    (folder, files), *_ = seen["folders"].items()
    _, _, last = honest.partition("\n\nFROM host\n")
    ready = {f"ci/ready/{path}": text for path, text in files.items()}
    found = graded(
        grade,
        task,
        {
            "honest": {"Dockerfile": honest},
            "no Dockerfile": {"ci/image.py": "print(1)\n"},
            "never tests": {"Dockerfile": honest.replace("sys.exit(1)", "pass")},
            "brings finished files along": {
                "Dockerfile": f"FROM host\n{last.split('COPY')[0]}COPY ci/ready/ .\n",
                **ready,
            },
            "leaves the tests in": {"Dockerfile": f"{honest}COPY tests/ tests/\n"},
            "forgets the argument": {"Dockerfile": honest.replace("ARG CHANNEL=", "ENV CHANNEL=")},
            "another folder": {"Dockerfile": honest.replace(f"WORKDIR {folder}", "WORKDIR /elsewhere")},
            "an image of elsewhere": {"Dockerfile": honest.replace("FROM host AS", "FROM registry.example/it:1 AS")},
            "copies from elsewhere": {"Dockerfile": f"{honest}COPY --from=registry.example/it:1 /x x\n"},
            "elsewhere by an argument": {"Dockerfile": f"ARG BASE=registry.example/it:1\nFROM $BASE\n{last}"},
        },
    )
    assert {one for one, verdict in found.items() if verdict.passed} == {"honest"}, found
    wrong = {one: verdict for one, verdict in found.items() if one != "honest"}
    assert {verdict.judgement for verdict in wrong.values()} == {Judgement.FAIL}, wrong
    for one in ("an image of elsewhere", "copies from elsewhere", "elsewhere by an argument"):
        assert "registry.example/it:1 would be fetched" in found[one].reason
