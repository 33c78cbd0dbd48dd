"""Reports, rows, logs, reviews and rewards that come out of a box in which an agent's code ran."""

from __future__ import annotations

import json

from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of
from tests.fuzz.targets.values import SCALARS, TEXTS, mostly, record, written

from etude.sandbox.contract import ExecResult
from etude.tasks.box.run_cases import READY, REPORT
from etude.tasks.cases import Case
from etude.tasks.verdict import Judgement
from etude.tasks.verifiers.cases import judge
from etude.tasks.verifiers.harbor.reward import BadReward, parse_reward
from etude.tasks.verifiers.review.findings import Finding, ReviewError, read_review
from etude.tasks.verifiers.script.workflow import WorkflowError, parse_workflow
from etude.tasks.verifiers.swebench.logs import FAILED, PARSERS, PASSED, SKIPPED, LogTooLong, read_log
from etude.tasks.verifiers.tests import Exam, RunOutput, judge_run
from etude.tasks.verifiers.tests.exam import Withheld
from etude.tasks.verifiers.tests.run_output import OUTCOMES

_NONCE = "5ca1ab1e"
_EXAM = Exam(
    files={},
    tests={"t1": "one", "t2": "two", "t3": "three"},
    controls={"c1": "one"},
    withheld={"t3": (Withheld("k", (42, [1, "x"])),)},
    may_skip=frozenset(("two",)),
)
_BETWEEN = b"\n---report---\n"


def _run_rows(data: bytes) -> str:
    rows, given, report = data.partition(_BETWEEN)
    verdicts = [
        judge_run(_EXAM, RunOutput(_NONCE, code, rows, report if given else None, limit=limit))
        for code, limit in ((0, ""), (1, ""), (137, "memory"))
    ]
    passed = verdicts[0].judgement is Judgement.PASS
    if passed:
        said = [json.loads(line[len(_NONCE) + 1 :]) for line in rows.split(b"\n")[:-1]]
        outcomes = {row["test"]: row["outcome"] for row in said if "test" in row}
        assert outcomes["t1"] == outcomes["t3"] == "passed", "a pass without its tests"
        assert outcomes["c1"] in ("failed", "error"), "a pass without its control"
        assert json.loads(report)["tests"] == outcomes, "a pass without its report"
        assert sum("value" in row for row in said) >= 2, "a pass without the withheld values"
    assert verdicts[2].judgement is not Judgement.PASS
    return " ".join(f"{verdict.judgement.value} {verdict.reason[:30]}" for verdict in verdicts[:2])


_TESTS = st.sampled_from(["t1", "t2", "t3", "c1", "x"])
_ROWS = st.one_of(
    record({"ready": TEXTS}),
    record(
        {
            "test": _TESTS,
            "outcome": st.sampled_from(sorted(OUTCOMES)),
            "seconds": st.floats(0, 1),
            "line": st.integers(0, 9),
        }
    ),
    record(
        {"value": st.just("k"), "is": st.sampled_from(["42", "[1, 'x']", "(" * 300, "9" * 5000, "-" * 90 + "1", "{}"])}
    ),
    record({"end": st.sampled_from([0, 1]), "memory": st.integers(0, 9)}),
    record({"broken": TEXTS}),
)
_REPORTS = record(
    {
        "nonce": st.just(_NONCE),
        "exit": st.sampled_from([0, 1]),
        "tests": st.dictionaries(_TESTS, mostly(st.just("passed"))),
    }
)


def _output(rows: list[object], report: object, prefix: str) -> bytes:
    start = prefix.encode("utf-8", "replace")
    return b"".join(start + written(row) + b"\n" for row in rows) + _BETWEEN + written(report)


def _honest() -> bytes:
    outcomes = {"t1": "passed", "t2": "passed", "c1": "failed", "t3": "passed"}
    rows: list[object] = [{"ready": "1"}]
    for test, outcome in outcomes.items():
        rows += [{"value": "k", "is": text} for text in ("42", "[1, 'x']") if test == "t3"]
        rows.append({"test": test, "outcome": outcome, "seconds": 0.1})
    return _output([*rows, {"end": 1}], {"nonce": _NONCE, "exit": 1, "tests": outcomes}, f"{_NONCE} ")


_CASES = (Case("a", "m", "f", (1,), "2"), Case("b", "m", "f", (2,), "3"))


def _run_cases(data: bytes) -> str:
    verdict = judge(ExecResult(0, data, b"", 0.1), _CASES, _NONCE)
    if verdict.judgement is Judgement.PASS:
        assert data.startswith(READY.encode() + b"\n")
        assert _NONCE.encode() in data
    return f"{verdict.judgement.value} {verdict.reason[:40]}"


_CASE_REPORTS = st.builds(
    lambda head, reports, tail: (
        f"{head}\n{''.join(f'{REPORT}{json.dumps(one)}{end}' for one, end in reports)}{tail}".encode("utf-8", "replace")
    ),
    mostly(st.just(READY)),
    st.lists(
        st.tuples(
            record(
                {
                    "nonce": st.just(_NONCE),
                    "status": st.sampled_from([0, -9, 1]),
                    "rows": st.lists(
                        mostly(
                            st.tuples(mostly(st.sampled_from("abc")), record({"value": st.sampled_from("23")})).map(
                                list
                            )
                        ),
                        max_size=3,
                    ),
                }
            ),
            st.sampled_from(["\n", "\n", ""]),
        ),
        max_size=2,
    ),
    st.sampled_from(["", "x"]),
)


def _run_review(data: bytes) -> str:
    said = []
    for listed, text in ((data, None), (None, data)):
        try:
            found = read_review(listed, text)
        except ReviewError as error:
            said.append(kind_of(error))
            continue
        assert len(found) <= 200
        assert all(
            isinstance(one, Finding) and isinstance(one.line, int) and isinstance(one.example, str) for one in found
        )
        said.append(f"{min(len(found), 3)} findings, {any(one.example for one in found)}")
    return " / ".join(said)


_REVIEWS = st.lists(
    record({"path": TEXTS, "line": st.integers(0, 9), "text": TEXTS, "example": TEXTS}), max_size=4
).map(written) | st.lists(
    st.builds(
        lambda lead, path, line, text: f"{lead}{path}:{line}: {text}\n",
        st.sampled_from(["", "- ", "1. ", "* `", "  ", "**"]),
        st.sampled_from(["a.py", "./a/b.py", "a b", "`a`", "é"]),
        st.sampled_from(["1", "999999999999", "x", "٣"]),
        st.sampled_from(["wrong: `f(1)`", "``f(`)`` `", "`" * 30, "x", "` `` ` ``` `"]),
    ),
    max_size=4,
).map(lambda lines: "".join(lines).encode())


def _run_reward(data: bytes) -> str:
    said = []
    for as_json, as_text in ((data, None), (None, data)):
        try:
            found = parse_reward(as_json, as_text)
        except BadReward as error:
            said.append(kind_of(error))
            continue
        assert all(value == value and abs(value) != float("inf") for value in found.values())
        assert "reward" in found
        said.append(f"{min(len(found), 3)} numbers")
    return " / ".join(said)


def _run_log(data: bytes) -> str:
    counts = []
    for parser in sorted(PARSERS):
        try:
            found = read_log(parser, data)
        except LogTooLong:
            counts.append("too long")
            continue
        assert set(found.values()) <= {PASSED, FAILED, SKIPPED}
        counts.append(str(min(len(found), 3)))
    return " ".join(counts)


_LOGS = st.lists(
    st.sampled_from(
        [
            *(
                "test_a (x.T) ... ok",
                "test_b ... FAIL",
                "FAIL: test_b (x)",
                "ok",
                "test_sym ok    [OK]",
                "test_sym F",
                "--- PASS: TestA (0.1s)",
            ),
            *(
                "test a::b ... ok",
                "ok 1 - first",
                "not ok 2 second # TODO x",
                "ok 3 # SKIP",
                "  ✓ does it (3 ms)",
                "✕ fails",
                "\x1b[32m✓ a\x1b[0m",
            ),
            *(
                " ... ",
                "   ",
                "...",
                "a ... skipped 'x'",
                "\x1b[",
                "# " * 20,
                "test " * 20,
                "- " * 20,
                "ok 1" + " " * 200,
            ),
        ]
    )
    | TEXTS,
    max_size=10,
).map(lambda lines: "\n".join(lines).encode("utf-8", "replace"))


def _run_workflow(data: bytes) -> str:
    try:
        jobs = parse_workflow(data)
    except WorkflowError as error:
        return kind_of(error)
    assert len(jobs) <= 24
    for job in jobs:
        for step in job.steps:
            assert all("\0" not in text for text in (*step.command, step.folder, *step.env.values()))
            assert not step.folder.startswith("/")
            assert ".." not in step.folder.split("/")
    return f"{min(len(jobs), 4)} jobs"


_WORKFLOWS = record(
    {
        "name": TEXTS,
        "on": SCALARS,
        "env": st.dictionaries(st.sampled_from(["A", "B"]), TEXTS, max_size=2),
        "jobs": st.dictionaries(
            st.sampled_from(["a", "b", "c"]),
            record(
                {
                    "runs-on": TEXTS,
                    "needs": st.sampled_from(["a", ["b"], []]),
                    "strategy": record(
                        {"matrix": st.dictionaries(st.sampled_from("xy"), st.lists(TEXTS, max_size=3), max_size=2)}
                    ),
                    "steps": st.lists(
                        record(
                            {
                                "run": st.sampled_from(["ls", "echo ${{ matrix.x }}", "${{", "${{ secrets.A }}"]),
                                "shell": st.just("sh"),
                            }
                        ),
                        max_size=3,
                    ),
                }
            ),
            max_size=3,
        ),
    }
).map(written)


def _run_all_examples() -> list[bytes]:
    return [
        b"test_a (x.T) ... ok\ntest_b (x.T) ... noise\nok\n\nFAIL: test_c (x.T)\n"
        b"--- FAIL: TestA (0.00s)\nok 1 - a # SKIP b\n",
        "  ✓ does it (3 ms)\n  ✕ fails 12ms\ntest a::b ... ok\ntest_sym ok  [OK]\n".encode(),
    ]


_WORKFLOW = b"""on: push
env: {A: "1"}
jobs:
  a:
    strategy: {matrix: {x: [1, 2]}}
    steps:
      - uses: actions/checkout@v4
      - run: echo ${{ matrix.x }}
        working-directory: b
  b: {needs: [a], steps: [{run: ls, shell: bash}]}
"""

TARGETS = (
    Target(
        "rows",
        _run_rows,
        st.builds(
            _output, st.lists(mostly(_ROWS), max_size=8), mostly(_REPORTS), mostly(st.just(f"{_NONCE} ")).map(str)
        ),
        ("etude.tasks.verifiers.tests",),
        lambda: [_honest()],
    ),
    Target(
        "cases",
        _run_cases,
        _CASE_REPORTS,
        ("etude.tasks.verifiers.cases",),
        lambda: [
            f"{READY}\n{REPORT}".encode()
            + written({"nonce": _NONCE, "status": 0, "rows": [["a", {"value": "2"}], ["b", {"value": "3"}]]})
            + b"\n"
        ],
    ),
    Target("review", _run_review, _REVIEWS, ("etude.tasks.verifiers.review",), largest=1 << 17),
    Target(
        "reward",
        _run_reward,
        mostly(record({"reward": st.floats(), "x": st.integers()})).map(written)
        | st.sampled_from([b"1.5\n", b"nan", b"1e999", b"x"]),
        ("etude.tasks.verifiers.harbor.reward",),
    ),
    Target("logs", _run_log, _LOGS, ("etude.tasks.verifiers.swebench.logs",), _run_all_examples),
    Target("workflow", _run_workflow, _WORKFLOWS, ("etude.tasks.verifiers.script.workflow",), lambda: [_WORKFLOW]),
)
