"""Dockerfiles: built from sound and from broken products, and what they make is looked at from outside."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from etude.tasks import Judgement, Task

from ..conftest import Boxes
from .grading import gated, graded, one_task


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return one_task("images", tmp_path_factory.mktemp("images"))


def solution(task: Task) -> str:
    patch = (task.directory / "solution/patch.diff").read_text()
    return "".join(line[1:] for line in patch.splitlines(keepends=True) if line[0] == "+" and line[:3] != "+++")


@pytest.mark.slow
def test_ways_to_cheat_fail(boxes: Boxes, task: Task) -> None:
    honest = solution(task)
    products = json.loads((task.directory / "tests/products.json").read_text())
    seen = next(product for product in products if product["name"] == "as it is")
    (folder, files), *_ = seen["folders"].items()
    name = next(path for path in files if "/" in path).split("/")[0]
    _, _, last = honest.partition("\n\nFROM host\n")
    ready = {f"ci/ready/{path}": text for path, text in files.items()}
    printer = "#!/bin/sh\necho " + seen["answers"][1]["prints"] + "\n"
    found = graded(
        boxes,
        task,
        {
            "honest": {"Dockerfile": honest},
            "no Dockerfile": {"ci/image.py": "print(1)\n"},
            "no instruction": {"Dockerfile": "# to be written\n"},
            "empty": {"Dockerfile": "FROM host\n"},
            "always fails": {"Dockerfile": "FROM host\nRUN exit 1\n"},
            "never tests": {"Dockerfile": honest.replace("sys.exit(1)", "pass")},
            "keeps no rule": {"Dockerfile": honest.replace("sys.exit(", "print(")},
            "brings finished files along": {
                "Dockerfile": f"FROM host\n{last.split('COPY')[0]}COPY ci/ready/ .\n",
                **ready,
            },
            "prints the answer": {
                "Dockerfile": honest + "ENV PATH=/srv/bin:$PATH\nCOPY ci/python3 /srv/bin/python3\n"
                "RUN chmod +x /srv/bin/python3 || true\n",
                "ci/python3": printer,
            },
            "leaves the tests in": {"Dockerfile": f"{honest}COPY tests/ tests/\n"},
            "forgets the argument": {"Dockerfile": honest.replace("ARG CHANNEL=", "ENV CHANNEL=")},
            "leaves a module out": {"Dockerfile": f"{honest}RUN rm $(ls {name}/*.py | tail -n 1)\n"},
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
    assert "prints in the image" in found["prints the answer"].reason


@pytest.mark.slow
def test_a_build_that_does_not_end_is_ended(boxes: Boxes, task: Task) -> None:
    quick = replace(task, verifier={**task.verifier, "seconds": 1})
    verdict = graded(boxes, quick, {"sleeps": {"Dockerfile": "FROM host\nRUN sleep 1000\n"}})["sleeps"]
    # An error where far more waits to run than there are cores: nobody knows then what a build was given.
    assert verdict.judgement in (Judgement.FAIL, Judgement.ERROR)
    assert "limit of time" in verdict.reason


@pytest.mark.soak
def test_ten_tasks_are_gated(boxes: Boxes, tmp_path: Path) -> None:
    gated(boxes, tmp_path, "images")
