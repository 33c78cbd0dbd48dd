"""Review: findings are read and scored out of any box."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks import Judgement, Task, TaskError, open_verifier
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
    problem_of_example,
    read_review,
    score_of,
)
from etude.tasks.verifiers.review.proof import names_of
from etude.tasks.verifiers.review.reachable_names import names_leading_to

from ..cheats.playing import written
from ..conftest import Grade
from .grading import graded, one_task, workspace

NAMED = [Defect(path="a.py", first=10, last=11, tests=["t"]), Defect(path="b.py", first=10, last=10, tests=["t"])]


def test_findings_are_read_in_the_forms_that_people_write() -> None:
    text = b"# Review\na.py:10: off by one\n- `b.py`:3: wrong\n2. ./c/d.py:7: x\nprose, see a.py:1\n**b.py:9**: bold\n"
    found = [(finding.path, finding.line) for finding in read_review(None, text)]
    assert found == [("a.py", 10), ("b.py", 3), ("c/d.py", 7), ("b.py", 9)]
    assert read_review(b'[{"path": "a.py", "line": "4", "text": "x"}]', text) == [Finding("a.py", 4, "x")]


NONE = (b"", b"{", b"[1]", b'[{"path": 1}]', b"[" * 100_000, b'[{"path":"a","line":1e999,"text":""}]')


@pytest.mark.parametrize(
    ("listed", "text", "said"),
    [
        (None, None, "there is no"),
        (None, b"a.py:1: some words here\n" * 201, "at most 200"),
        (None, b"a" * (1 << 18), "bytes"),
        (b"[" + b" " * (1 << 17) + b"]", None, "bytes"),
        *((data, None, "expected a list") for data in NONE),
    ],
    ids=range(10),
)
def test_what_is_no_review_is_refused(listed: bytes | None, text: bytes | None, said: str) -> None:
    with pytest.raises(ReviewError, match=said):
        read_review(listed, text)


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


@settings(max_examples=40)
@given(Findings, Findings)
def test_a_false_alarm_never_helps_and_a_find_never_harms(found: list[Finding], more: list[Finding]) -> None:
    score = score_of(found, NAMED, 1)[0]
    assert 0.0 <= score.value <= 1.0
    assert score.found + score.missed == len(NAMED)
    for extra in more:
        changed = score_of([*found, extra], NAMED, 1)[0]
        if changed.false_alarms > score.false_alarms:
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
    package = read_package("rota")
    planted = plant(package, random.Random(1))
    alone = [damage.alteration for damage in planted.damages]
    others = [one for one in planted.alterations if one not in alone]
    whole, *each = try_variants(
        {**package.files, **package.tests},
        [altered(package.files, others), *(altered(package.files, [*others, one]) for one in alone)],
    )
    assert len(alone) == DEFECTS
    assert whole.failed == ()
    for outcome, damage in zip(each, planted.damages, strict=True):
        assert set(damage.tests) <= set(outcome.failed)
    head = altered(package.files, planted.alterations)
    for damage in planted.damages:
        one = damage.alteration
        line = head[one.path].decode().splitlines()[planted.lines[one] - 1]
        assert one.text in line


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return one_task("review", tmp_path_factory.mktemp("review"))


def review(places: list[tuple[str, int]], examples: list[str], text: str = "this is wrong") -> dict[str, str | None]:
    rows = zip(places, examples, strict=True)
    return {"REVIEW.md": "".join(f"{path}:{line}: {text} `{example}`\n" for (path, line), example in rows)}


@pytest.mark.slow
def test_ways_to_cheat_fail(grade: Grade, task: Task) -> None:
    files = workspace(task)
    changed = [path for path in files if path.endswith(".py")]
    lines = [(path, number) for path in changed for number in range(1, len(files[path].splitlines()) + 1)]
    defects = json.loads((task.directory / "tests/defects.json").read_text())["defects"]
    exact = [(defect["path"], defect["first"]) for defect in defects]
    solved = (task.directory / "solution/patch.diff").read_text().splitlines()
    shown = [line.split("`")[-2] for line in solved if line.startswith("+") and line.endswith("`")]
    call = shown[0].partition("(")[0]

    everything = f"({', '.join(dict.fromkeys(shown))},)"

    def instead(example: str) -> dict[str, str | None]:
        return review(exact, [example] * len(exact))

    found = graded(
        grade,
        task,
        {
            "all there is, at each": instead(everything),
            "all there is, each time another": review(exact, [f"{everything} + ({n},)" for n in range(len(exact))]),
            "every line": review(lines[:200], ["1"] * len(lines[:200])),
            "half of them": review(exact[: DEFECTS // 2], shown[: DEFECTS // 2]),
            "no words": review(exact, shown, "x"),
            "mends the code instead": {path: files[path].replace("<=", "<") for path in changed},
            "no example": {"REVIEW.md": "".join(f"{path}:{line}: this is wrong\n" for path, line in exact)},
            "examples of other defects": review(exact, [*shown[1:], shown[0]]),
            "one that never differs": instead("1 + 1"),
            "one that is never the same": instead(f'f"{{{call}}}"'),
            "one that says where it lies": instead(f"[{call}]"),
            "one that never ends": review(exact, ["[1 for _ in iter(int, 1)]", "1", "2", "3", "4"]),
            "exact": review(exact, shown),
            "exact, code changed too": {**review(exact, shown), changed[0]: "x = 1\n"},
        },
    )
    passed = {name for name, verdict in found.items() if verdict.passed}
    assert passed == {"exact", "exact, code changed too"}, found
    assert {verdict.judgement for verdict in found.values()} == {Judgement.PASS, Judgement.FAIL}, found
    assert found["exact, code changed too"].evidence.touched_protected == (changed[0],)
    assert found["half of them"].evidence.score == pytest.approx(4 / 7)
    for one in ("no example", "one that never differs", "one that is never the same", "one that says where it lies"):
        assert found[one].reason == "0 of 5 defects found, 0 false alarms, 5 examples that do not show their defect", (
            found[one]
        )


@pytest.mark.parametrize("text", ["`" * 100_000, "`a``" * 25_000, "`a``b" * 20_000, "a`" * 60_000 + "``"])
def test_a_line_of_backticks_is_read_at_once(text: str) -> None:
    started = time.process_time()
    (finding,) = read_review(None, f"a.py:1: {text}".encode())
    assert time.process_time() - started < 2
    assert len(finding.text) + len(finding.example) <= len(text)


@given(st.text(alphabet="`ab ", max_size=40))
def test_what_stands_in_backticks_last_is_the_example(text: str) -> None:
    """As they are read in Markdown: a run of them ends at the next one of its length."""
    (finding,) = read_review(None, f"a.py:1: x{text}".encode())
    runs = [match.span() for match in re.finditer("`+", text)]
    pairs, at = [], 0
    while at < len(runs):
        size = runs[at][1] - runs[at][0]
        ends = [n for n in range(at + 1, len(runs)) if runs[n][1] - runs[n][0] == size]
        if ends:
            pairs.append((runs[at][1], runs[ends[0]][0]))
        at = ends[0] + 1 if ends else at + 1
    assert finding.example == (text[slice(*pairs[-1])].strip() if pairs else "")


LEADING = {
    "it/one.py": """LIMIT = 3


def _inner(x):
    return x < LIMIT


class Box:
    def __init__(self, x):
        self.x = _inner(x)

    def full(self):
        return self.x


def outer(x):
    return Box(x).full()


def other(x):
    return x
""",
    "it/two.py": "from it.one import other, outer\n\n\ndef far(x):\n    return outer(x) + other(x)\n",
}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (1, "LIMIT _inner Box outer far"),
        (5, "_inner Box outer far"),
        (10, "Box outer far"),
        (13, "full outer far"),
        (17, "outer far"),
        (21, "other far"),
        (7, ""),
    ],
)
def test_names_that_lead_to_a_line(line: int, names: str) -> None:
    assert names_leading_to(LEADING, "it/one.py", line, line) == set(names.split())


def test_an_example_names_little_and_what_leads_to_its_place() -> None:
    library = {"it": frozenset("abcdef"), "it.one": frozenset("abcdef")}
    assert problem_of_example("it.a(it.b(1))", library, frozenset("bx")) == ""
    assert "names none of b, x" in problem_of_example("it.a(1)", library, frozenset("bx"))
    assert "more than 3" in problem_of_example("(it.a(1), it.b(1), it.c(1), it.d(1))", library, frozenset("a"))


def test_an_example_is_one_expression_on_what_the_library_makes_public() -> None:
    sources = {
        "it/__init__.py": "from it.one import f\nimport os\n",
        "it/one.py": "import sys\n\n\ndef f(x): return x\n",
    }
    library = names_of(sources)
    assert library == {"it": frozenset({"f"}), "it.one": frozenset({"f"})}
    for good in ("it.f(3)", "f([1, 2])", "[f(n) for n in range(3)]", "sorted({f(1), f(2)})"):
        assert problem_of_example(good, library) == ""
    for bad in (
        "",
        "it.os",
        "it.one.sys",
        "f.__code__",
        "x = 1",
        "f(1); f(2)",
        "open('/etc/passwd')",
        "f(",
        "1" * 2000,
    ):
        assert problem_of_example(bad, library)
    (finding,) = read_review(None, b"a.py:1: not `a` as in ``f(1)``, no\n")
    assert (finding.text, finding.example) == ("not `a` as in , no", "f(1)")


def test_a_malformed_task_is_named(tmp_path: Path) -> None:
    (bad,) = written(tmp_path, "review-calc")
    (bad.directory / "tests/defects.json").write_text('{"places": 0, "defects": []}')
    with pytest.raises(TaskError, match=r"defects\.json.*places"):
        open_verifier(bad)
