"""Instances that are graded by their own script: its log, its markers, its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sandbox.hosts import TAKES_ITS_SHARE

from etude.tasks import Judgement, Split, Task, TaskError, open_verifier, write_task
from etude.tasks.verifiers.swebench import script
from etude.tasks.verifiers.swebench.logs import FAILED, PARSERS, PASSED, SKIPPED, read_log
from etude.tasks.verifiers.tests import suite_files

from ...conftest import Grade

LOGS = {
    "parse_log_django": "a (m.C) ... ok\nb (m.C)\nDoc. ... FAIL\nc (m.C) ... skipped ''\nd (m.C) ... noise\nok\nok\n",
    "parse_log_sympy": "test_a ok\ntest_b F\ntest_c s\ntest_d f    [OK]\nnothing here\n",
    "parse_log_gotest": "--- PASS: TestA (0.00s)\n    --- FAIL: TestB/x (0.1s)\n--- SKIP: TestC (0.00s)\n",
    "parse_log_cargo": "test a::b ... ok\ntest c ... FAILED\ntest d ... ignored, slow\n",
    "parse_log_tap": "ok 1 - a\nnot ok 2 - b\n    ok 3 c # SKIP later\n",
    "parse_log_jest": "  \x1b[32m✓\x1b[39m a b (3 ms)\n  ✕ c\n  ○ d\n",
}
OUTCOMES = {
    "parse_log_django": {"a (m.C)": PASSED, "Doc.": FAILED, "c (m.C)": SKIPPED, "d (m.C)": PASSED},
    "parse_log_sympy": {"test_a": PASSED, "test_b": FAILED, "test_c": SKIPPED, "test_d": PASSED},
    "parse_log_gotest": {"TestA": PASSED, "TestB/x": FAILED, "TestC": SKIPPED},
    "parse_log_cargo": {"a::b": PASSED, "c": FAILED, "d": SKIPPED},
    "parse_log_tap": {"a": PASSED, "b": FAILED, "c": SKIPPED},
    "parse_log_jest": {"a b": PASSED, "c": FAILED, "d": SKIPPED},
}


@pytest.mark.parametrize("parser", LOGS)
def test_what_runners_print_is_read_back(parser: str) -> None:
    assert read_log(parser, LOGS[parser].encode()) == OUTCOMES[parser]


def test_of_two_words_the_worse_counts() -> None:
    assert read_log("parse_log_cargo", b"test a ... ok\ntest a ... FAILED\ntest a ... ok\n") == {"a": FAILED}
    assert read_log("parse_log_cargo", b"test a ... ok\ntest a ... ignored\n") == {"a": SKIPPED}


@pytest.mark.parametrize("parser", PARSERS)
@settings(max_examples=25)
@given(log=st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_no_log_breaks_a_reader(parser: str, log: bytes) -> None:
    assert set(read_log(parser, log).values()) <= {PASSED, FAILED, SKIPPED}


SCRIPT = """#!/bin/bash
set -uxo pipefail
git apply - <<'EOF'
--- a/checks.sh
+++ b/checks.sh
@@ -1 +1,2 @@
 . ./lib.sh
+test "$(twice 4)" = 8 && echo 'test four ... ok' || { echo 'test four ... FAILED'; exit 1; }
EOF
: '>>>>> Start Test Output'
sh checks.sh
: '>>>>> End Test Output'
"""
LIB = "twice() { echo $(($1 * 3)); }\necho 'test start ... ok'\n"
RIGHT = "--- a/lib.sh\n+++ b/lib.sh\n@@ -1,2 +1,2 @@\n-twice() { echo $(($1 * 3)); }\n+twice() { echo $(($1 * 2)); }\n"
RIGHT += " echo 'test start ... ok'\n"


def task(folder: Path, script: str = SCRIPT, parser: str = "parse_log_cargo") -> Task:
    made = Task("t", "mend it", "debugging", Split.TRAIN, "family", "", folder)
    made.verifier = {"type": "eval-script", "log_parser": parser}
    files = {"environment/repo/lib.sh": LIB.encode(), "environment/repo/checks.sh": b". ./lib.sh\n"}
    write_task(made, {**files, **suite_files({}, ["four"], ["start"]), "tests/eval.sh": script.encode()})
    return made


def test_the_script_decides_and_the_verdict_is_open(grade: Grade, tmp_path: Path) -> None:
    silent = RIGHT.replace("+twice() { echo $(($1 * 2)); }", "+exit 0")
    forged = RIGHT.replace(
        "+twice() { echo $(($1 * 2)); }", "+echo 'test four ... ok'; echo 'test start ... ok'; exit 3"
    )
    meddled = "--- a/checks.sh\n+++ b/checks.sh\n@@ -1 +1 @@\n-. ./lib.sh\n+echo 'test four ... ok'\n"
    right, nothing, silence, forgery, touched = grade(task(tmp_path / "t"), RIGHT, "", silent, forged, meddled)
    assert right.passed, right
    assert (right.evidence.sealed, right.evidence.tests_passed) == (False, 2)
    assert nothing.evidence.failed_tests == ("four",)
    assert silence.evidence.failed_tests == ("four", "start"), "a test that is not heard of never passes"
    assert forgery.judgement is Judgement.SUSPECT
    assert (touched.judgement, touched.evidence.touched_protected) == (Judgement.FAIL, ("checks.sh",))


def test_a_script_that_does_not_come_to_its_end_passes_nothing(grade: Grade, tmp_path: Path) -> None:
    stopped = SCRIPT.replace("sh checks.sh", "sh checks.sh; exit 0")
    (verdict,) = grade(task(tmp_path / "t", stopped), RIGHT)
    assert verdict.judgement is Judgement.FAIL
    assert "did not come to the end" in verdict.reason


@pytest.mark.parametrize(
    ("host", "waits", "judgement"),
    [
        ("with_time_enough", "while :; do :; done", Judgement.FAIL),
        ("short_of_time", TAKES_ITS_SHARE, Judgement.ERROR),
        ("short_of_time", "sleep 20", Judgement.FAIL),
    ],
)
def test_a_clock_that_expires_is_the_hosts_only_where_it_gave_no_time(
    grade: Grade,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    waits: str,
    judgement: Judgement,
) -> None:
    request.getfixturevalue(host)
    monkeypatch.setattr(script, "wall_limit", lambda seconds: 1.0)
    (verdict,) = grade(task(tmp_path / "t", SCRIPT.replace("sh checks.sh", waits)), RIGHT)
    assert (verdict.judgement, verdict.evidence.timed_out) == (judgement, True)


def test_what_a_script_must_have(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"eval.sh: expected the lines '>>>>> Start Test Output'"):
        open_verifier(task(tmp_path / "a", "true\n"))
    with pytest.raises(TaskError, match=r"log_parser: expected one of .*parse_log_cargo.*, found 'parse_log_x'"):
        open_verifier(task(tmp_path / "b", parser="parse_log_x"))


def test_tests_that_the_script_does_not_bring_are_laid_over_the_workspace(grade: Grade, tmp_path: Path) -> None:
    patch, (_, rest) = SCRIPT.split("EOF")[1].lstrip("'\n"), SCRIPT.rsplit("EOF\n", 1)
    made = task(tmp_path / "t", f"#!/bin/bash\n{rest}".replace(": '>", "echo '>"))
    (made.directory / "tests/test.patch").write_text(patch)
    right, nothing = grade(made, RIGHT, "")
    assert right.passed, right
    assert nothing.evidence.failed_tests == ("four",)
    assert open_verifier(made).protects("checks.sh/in/the/way")
    (made.directory / "tests/test.patch").write_text(patch.replace(" . ./lib.sh", " . ./other.sh"))
    (verdict,) = grade(made, RIGHT)
    assert verdict.judgement is Judgement.ERROR
    assert "tests/test.patch is no diff of the workspace" in verdict.reason


def test_a_script_that_cannot_begin_is_no_fail(grade: Grade, tmp_path: Path) -> None:
    (verdict,) = grade(task(tmp_path / "t", SCRIPT.replace("set -ux", "test -d /testbed || exit 4\nset -ux")), RIGHT)
    assert verdict.judgement is Judgement.ERROR
    assert "not even without a change (code 4)" in verdict.reason
    # Where it is the change that keeps it from beginning, that is the change's doing.
    begins = task(tmp_path / "u", SCRIPT.replace("set -ux", ". ./lib.sh\nset -ux"))
    (verdict,) = grade(begins, RIGHT.replace("+twice() { echo $(($1 * 2)); }", "+exit 5"))
    assert verdict.judgement is Judgement.FAIL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected JSON"),
        ("[]", "an object"),
        ('{"fail_to_pass": [1]}', "fail_to_pass"),
        ('{"fail_to_pass": ["a"]}', "pass_to_pass"),
        ('{"fail_to_pass": [], "pass_to_pass": []}', "at least one id"),
    ],
)
def test_what_is_expected_must_be_lists_of_ids(tmp_path: Path, text: str, said: str) -> None:
    made = task(tmp_path / "t")
    (made.directory / "tests/expected.json").write_text(text)
    with pytest.raises(TaskError, match=rf"expected.json: .*{said}"):
        open_verifier(made)
