"""CI workflows: read out of any box, and run on sound and on broken products."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks import Task
from etude.tasks.categories.workflows import WORKFLOW
from etude.tasks.verifiers.script import Job, Step, WorkflowError, parse_workflow

from ..conftest import Grade
from .grading import graded, one_task, solution

SQUARE = ", ".join(f"k{number}: [1, 2, 3]" for number in range(40))
HEAD = "jobs:\n  a:\n    steps:\n      - run: make\n"


def test_a_workflow_is_read() -> None:
    text = """
name: ci
on: [push]
env: {LEVEL: 3, MODE: none}
jobs:
  last:
    needs: [first]
    steps:
      - run: echo done
  first:
    runs-on: somewhere
    strategy: {fail-fast: false, matrix: {python: [3.10, 3.11], mode: [yes]}}
    env: {MODE: "${{ matrix.mode }}"}
    steps:
      - uses: actions/checkout@v4
      - name: tests
        shell: bash
        working-directory: src/${{ matrix.python }}
        env: {LEVEL: "${{matrix.python}}"}
        run: |
          python${{ matrix.python }} -m unittest
"""

    def tests(python: str) -> Step:
        command = ("bash", "-eo", "pipefail", "-c", f"python{python} -m unittest\n")
        return Step("tests", command, {"LEVEL": python, "MODE": "yes"}, f"src/{python}")

    last = Step("jobs.last.steps[0]", ("sh", "-e", "-c", "echo done"), {"LEVEL": "3", "MODE": "none"}, ".")
    assert parse_workflow(text.encode()) == [
        Job("first (3.10, yes)", (tests("3.10"),)),
        Job("first (3.11, yes)", (tests("3.11"),)),
        Job("last", (last,)),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a table"),
        ("jobs: [", "expected YAML"),
        ("\x00", "expected YAML"),
        ("[" * 700, "expected YAML"),
        ("#" * 70_000, "at most"),
        (f"{HEAD}defaults: {{}}\n", "defaults: not run here"),
        (HEAD.replace("run: make", "run: make\n        if: always()"), "if: not run here"),
        (HEAD.replace("run: make", "run: make\n        continue-on-error: true"), "continue-on-error: not run here"),
        (HEAD.replace("run: make", "uses: actions/setup-python@v5"), "uses: not run here"),
        (HEAD.replace("run: make", "run: [make]"), "expected a plain value"),
        (HEAD.replace("run: make", "name: x"), "expected a plain value"),
        (HEAD.replace("make", "echo ${{ secrets.KEY }}"), "matrix.KEY"),
        (HEAD.replace("run: make", "run: make\n        working-directory: ../x"), "a folder of the workspace"),
        (HEAD.replace("run: make", "run: make\n        working-directory: /"), "a folder of the workspace"),
        (HEAD.replace("run: make", "run: make\n        shell: python"), "sh or bash"),
        (HEAD.replace("run: make", "run: make\n        env: {A=B: 1}"), "names of variables"),
        (f"{HEAD}    needs: b\n", "cycle or an unknown job at a"),
        (f"{HEAD}    needs: a\n", "cycle"),
        (f"{HEAD}    strategy: {{matrix: {{a: [1], include: [1]}}}}\n", "include: not run here"),
        (f"{HEAD}    strategy: {{matrix: {{a: []}}}}\n", "not empty"),
        (f"{HEAD}    strategy: {{matrix: {{a: {list(range(25))}}}}}\n", "at most 24"),
        (f"{HEAD}    strategy: {{matrix: {{{SQUARE}}}}}\n", "at most 24"),
        (HEAD.replace("- run: make", ""), "1 to 64"),
        ("jobs: {}", "at least one"),
        ("jobs: &a {b: *a}", "anchors"),
        (f"{HEAD}  a:\n    steps: []\n", "every key once"),
    ],
)
def test_what_is_not_run_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(WorkflowError, match=said):
        parse_workflow(text.encode())


Plain = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
Keys = st.sampled_from(["jobs", "steps", "run", "env", "needs", "strategy", "matrix", "a", "name", "uses"])
Documents = st.recursive(Plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(Keys, inner, max_size=4))


@settings(max_examples=40)
@given(Documents | st.fixed_dictionaries({"jobs": st.fixed_dictionaries({"a": Documents})}), st.binary(max_size=40))
def test_no_text_does_more_than_be_refused(document: object, data: bytes) -> None:
    for text in (data, yaml.safe_dump(document).encode()):
        try:
            parse_workflow(text)
        except WorkflowError:
            continue


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return one_task("workflows", tmp_path_factory.mktemp("workflows"))


@pytest.mark.slow
def test_ways_to_cheat_fail(grade: Grade, task: Task) -> None:
    honest = solution(task)[WORKFLOW]
    found = graded(
        grade,
        task,
        {
            "honest": {WORKFLOW: honest},
            "no workflow": {"ci/run.sh": "exit 1\n"},
            "a step that is to be forgiven": {WORKFLOW: HEAD.replace("make", "make\n        continue-on-error: true")},
            "tests whose failure is swallowed": {WORKFLOW: honest.replace("exit 1", "true")},
            "no mode at all": {WORKFLOW: honest.replace("matrix.mode }}", "matrix.mode }}x")},
            "changes the tests": {WORKFLOW: HEAD.replace("make", "true"), "tests/test_modes.py": ""},
        },
    )
    assert {name for name, verdict in found.items() if verdict.passed} == {"honest"}
    assert {str(verdict.judgement) for name, verdict in found.items() if name != "honest"} == {"fail"}
    assert "not run here" in found["a step that is to be forgiven"].reason
    assert found["changes the tests"].evidence.touched_protected == ("tests/test_modes.py",)
