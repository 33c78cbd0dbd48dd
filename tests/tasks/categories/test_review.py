"""Review: findings are read and scored out of any box."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks import Judgement, Task, TaskError, open_verifier, read_files, read_task, write_task
from etude.tasks.categories.alterations import altered
from etude.tasks.categories.packages import read_package
from etude.tasks.categories.review import DEFECTS, plant
from etude.tasks.categories.variants import try_variants
from etude.tasks.verifiers.review import (
    Defect,
    Finding,
    ReviewError,
    Score,
    chance_of_guess,
    read_review,
    score_of,
)

from ..conftest import Boxes
from .grading import gated, graded, one_task, workspace

NAMED = [Defect(path="a.py", first=10, last=11, tests=["t"]), Defect(path="b.py", first=10, last=10, tests=["t"])]


def test_findings_are_read_in_the_forms_that_people_write() -> None:
    text = b"# Review\na.py:10: off by one\n- `b.py`:3: wrong\n2. ./c/d.py:7: x\nprose, see a.py:1\n**b.py:9**: bold\n"
    found = [(finding.path, finding.line) for finding in read_review(None, text)]
    assert found == [("a.py", 10), ("b.py", 3), ("c/d.py", 7), ("b.py", 9)]
    assert read_review(b'[{"path": "a.py", "line": "4", "text": "x"}]', text) == [Finding("a.py", 4, "x")]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b'[{"path": 1}]', b"[" * 100_000, b'[{"path":"a","line":1e999,"text":""}]']
)
def test_a_list_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ReviewError):
        read_review(data, None)


def test_no_review_and_an_endless_one_are_refused() -> None:
    with pytest.raises(ReviewError, match="there is no"):
        read_review(None, None)
    with pytest.raises(ReviewError, match="at most"):
        read_review(None, b"a.py:1: some words here\n" * 201)


def test_the_score_counts_defects_once_and_false_alarms_each() -> None:
    words = "what is wrong here"
    findings = [
        Finding("a.py", 9, words),
        Finding("a.py", 12, words),
        Finding("b.py", 12, words),
        Finding("c.py", 1, words),
    ]
    assert score_of(findings, NAMED, 1)[0] == Score(1, 1, 2)
    assert score_of([Finding("a.py", 10, "bad")], NAMED, 1)[0] == Score(0, 2, 0)
    assert score_of([Finding("a.py", 10, words), Finding("b.py", 10, words)], NAMED, 0)[0].value == 1.0
    assert score_of([], NAMED, 1)[0].value == 0.0


Findings = st.lists(
    st.builds(Finding, st.sampled_from(["a.py", "b.py", "c.py"]), st.integers(1, 20), st.just("some words here"))
)


@given(Findings, Findings)
def test_a_false_alarm_never_helps_and_a_find_never_harms(found: list[Finding], more: list[Finding]) -> None:
    score = score_of(found, NAMED, 1)[0]
    assert 0.0 <= score.value <= 1.0
    assert score.found + score.missed == len(NAMED)
    for extra in more:
        changed = score_of([*found, extra], NAMED, 1)[0]
        if changed.alarms > score.alarms:
            assert changed.value <= score.value
        else:
            assert changed.value >= score.value


@given(st.integers(1, 9), st.data(), st.floats(0.3, 1.0))
def test_the_chance_of_a_guess_is_counted(places: int, data: st.DataObject, threshold: float) -> None:
    defects = data.draw(st.integers(1, places))
    best = 0.0
    for marked in range(places + 1):
        ways = list(itertools.combinations(range(places), marked))
        hits = [sum(place < defects for place in way) for way in ways]
        good = sum(Score(hit, defects - hit, marked - hit).value >= threshold for hit in hits)
        best = max(best, good / len(ways))
    assert chance_of_guess(places, defects, threshold) == pytest.approx(best)


@pytest.mark.slow
def test_every_planted_defect_is_real_and_every_other_place_harmless() -> None:
    for name, seed in (("rota", 1), ("pantry", 2), ("parcels", 3)):
        package = read_package(name)
        planted = plant(package, random.Random(seed))
        alone = [damage.alteration for damage in planted.damages]
        others = [one for one in planted.alterations if one not in alone]
        whole, *each = try_variants(
            {**package.files, **package.tests},
            [altered(package.files, others), *(altered(package.files, [*others, one]) for one in alone)],
        )
        assert len(alone) == DEFECTS
        assert whole is not None
        assert whole.failed == ()
        for outcome, damage in zip(each, planted.damages, strict=True):
            assert outcome is not None
            assert set(damage.tests) <= set(outcome.failed)
        head = altered(package.files, planted.alterations)
        for damage in planted.damages:
            one = damage.alteration
            line = head[one.path].decode().splitlines()[planted.lines[one] - 1]
            assert one.text in line


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return one_task("review", tmp_path_factory.mktemp("review"))


def test_ways_to_cheat_fail(boxes: Boxes, task: Task) -> None:
    files = workspace(task)
    changed = [path for path in files if path.endswith(".py")]
    lines = [(path, number) for path in changed for number in range(1, len(files[path].splitlines()) + 1)]
    defects = json.loads((task.directory / "tests/defects.json").read_text())["defects"]
    exact = [(defect["path"], defect["first"]) for defect in defects]

    def review(places: list[tuple[str, int]], text: str = "this is wrong") -> dict[str, str | None]:
        return {"REVIEW.md": "".join(f"{path}:{line}: {text}\n" for path, line in places)}

    found = graded(
        boxes,
        task,
        {
            "every line": review(lines[:200]),
            "every third line": review(lines[::3]),
            "half of them": review(exact[: DEFECTS // 2]),
            "all and as many more": review(exact + [("README.md", line) for line in range(1, 6)]),
            "no words": review(exact, "x"),
            "other files": review([(f"x/{path}", line) for path, line in exact]),
            "prose": {"REVIEW.md": "All of it is wrong.\n"},
            "a broken list": {"review.json": "["},
            "mends the code instead": {path: files[path].replace("<=", "<") for path in changed},
            "exact": review(exact),
            "exact, code changed too": {**review(exact), changed[0]: "x = 1\n"},
        },
    )
    passed = {name for name, verdict in found.items() if verdict.passed}
    assert passed == {"exact", "exact, code changed too"}
    assert {verdict.judgement for verdict in found.values()} == {Judgement.PASS, Judgement.FAIL}
    assert found["exact, code changed too"].evidence.touched_protected == (changed[0],)
    assert found["half of them"].evidence.score == pytest.approx(4 / 7)


def test_a_malformed_task_is_named(task: Task, tmp_path: Path) -> None:
    files = {f"environment/repo/{path}": data for path, data in read_files(task.directory).items()}
    task.directory, before = tmp_path / "bad", task.directory
    try:
        write_task(task, {**files, "tests/defects.json": b'{"places": 0, "defects": []}'})
        with pytest.raises(TaskError, match=r"defects\.json.*places"):
            open_verifier(read_task(task.directory, {task.split}))
    finally:
        task.directory = before


@pytest.mark.slow
def test_ten_tasks_are_gated(boxes: Boxes, tmp_path: Path) -> None:
    gated(boxes, tmp_path, "review")
