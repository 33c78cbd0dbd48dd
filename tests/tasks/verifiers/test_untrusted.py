"""What the code under test wrote is read in time and memory that its size bounds, and nothing in it is raised."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.contract import ExecResult, ImageError
from etude.sandbox.images.build.dockerfile import parse_dockerfile
from etude.sandbox.images.build.patterns import Glob, Ignored
from etude.sandbox.images.build.plan import make_plan
from etude.tasks.box.run_cases import READY, REPORT
from etude.tasks.box.run_tests import MOST_TOLD
from etude.tasks.cases import Case
from etude.tasks.diff import DiffError, parse_diff
from etude.tasks.verdict import Judgement
from etude.tasks.verifiers.archives import ArchiveError, members_of
from etude.tasks.verifiers.cases import judge
from etude.tasks.verifiers.documentation.claims import claims_of
from etude.tasks.verifiers.documentation.examples import of_docstring, of_text
from etude.tasks.verifiers.harbor.reward import BadReward, parse_reward
from etude.tasks.verifiers.refactor.measure import measure
from etude.tasks.verifiers.review import ReviewError, read_review
from etude.tasks.verifiers.script import WorkflowError, parse_workflow
from etude.tasks.verifiers.swebench.ids import RunnerIds
from etude.tasks.verifiers.swebench.logs import PARSERS, LogTooLong, read_log
from etude.tasks.verifiers.tests import Exam, judge_run
from etude.tasks.verifiers.tests.exam import Withheld
from etude.tasks.verifiers.tests.run_output import LONGEST_ROW, RunOutput, read_report, read_rows
from etude.tasks.verifiers.untrusted_json import parse_untrusted

MIB = 1 << 20
SECONDS, BYTES = 2.0, 48 * MIB
"""What reading may cost the grader's host at most."""
_TRACED = 2.5
"""Counting its memory may make it take longer by this factor."""


def quickly(act: Callable[[], object], *but: type[Exception], seconds: float = SECONDS) -> None:
    """Do it within so many seconds of CPU time. Only the exceptions `but` may be raised."""
    began = time.process_time()
    with contextlib.suppress(*but):
        act()
    assert time.process_time() - began < seconds


def cheaply(act: Callable[[], object], *but: type[Exception]) -> None:
    """Do it within SECONDS of CPU time and BYTES of memory. Only the exceptions `but` may be raised."""
    tracemalloc.start()
    try:
        quickly(act, *but, seconds=_TRACED * SECONDS)
        assert tracemalloc.get_traced_memory()[1] < BYTES
    finally:
        tracemalloc.stop()


def sparse_tar(size: int, kind: bytes = tarfile.GNUTYPE_SPARSE) -> bytes:
    """A header that claims a file of `size` bytes, of which nothing is stored."""
    info = tarfile.TarInfo("sparse")
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[156:157] = kind
    head[386:410] = b"%011o\0%011o\0" % (size - 1, 1)
    head[483:495] = b"%011o\0" % size
    head[124:136] = b"%011o\0" % 1
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + bytes(1024)


def pax_tar(**headers: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("x")
        info.pax_headers, info.size = {name.replace("_", "."): text for name, text in headers.items()}, 3
        archive.addfile(info, io.BytesIO(b"abc"))
    return out.getvalue()


def zip_of(count: int, data: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for number in range(count):
            archive.writestr(f"{number}", data)
    return out.getvalue()


def long_names(count: int) -> bytes:
    info = tarfile.TarInfo("name")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 5
    return (info.tobuf(tarfile.GNU_FORMAT) + b"named".ljust(512, b"\0")) * count


ARCHIVES = {
    "sparse of 2 GiB": sparse_tar(2 << 30),
    "sparse of 8 GiB": sparse_tar(8 << 30),
    "pax sparse": pax_tar(GNU_sparse_size=str(2 << 30), GNU_sparse_map=f"0,1,{(2 << 30) - 1},1"),
    "pax sparse 1.0": pax_tar(GNU_sparse_major="1", GNU_sparse_minor="0", GNU_sparse_realsize=str(2 << 30)),
    "pax size": pax_tar(size=str(2 << 30)),
    "pax digits": pax_tar(comment="1" * 60_000),
    "many long names": long_names(4000),
    "zeros": bytes(4 * MIB),
    "digits": b"1" * (4 * MIB),
    "zip of zeros": zip_of(9, bytes(MIB)),
    "zip of many": zip_of(2001, b""),
    "zip by lzma": zip_of(1, bytes(100), zipfile.ZIP_LZMA),
    "zip without a name": zip_of(1, b"x").replace(b"0", b"\0"),
    "zip of entries": b"PK\x05\x06" + b"PK\x01\x02" * MIB,
    "gzip of zeros": gzip.compress(bytes(64 * MIB)),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_no_archive_takes_more_than_its_size(name: str) -> None:
    cheaply(lambda: members_of(ARCHIVES[name]), ArchiveError)


@pytest.mark.parametrize("name", [name for name in ARCHIVES if "sparse" in name or "lzma" in name])
def test_archives_of_other_kinds_are_refused(name: str) -> None:
    with pytest.raises(ArchiveError):
        members_of(ARCHIVES[name])


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_every_format_are_read(format: int) -> None:
    files = {"a": b"", "b/c": b"x" * 513, "long/" * 20 + "name": b"deep", "umläut/ñ": b"\0\xff"}
    if format != tarfile.USTAR_FORMAT:
        files |= {"n" * 250: b"long", "longer/" * 60 + "x": b"longest"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        archive.addfile(_folder("b"))
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{name}" if len(name) < 50 else name)
            info.size, info.mtime = len(data), 1.5 if format == tarfile.PAX_FORMAT else 1
            archive.addfile(info, io.BytesIO(data))
    assert members_of(out.getvalue()) == files


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


@given(st.binary(max_size=2000), st.integers(0, 1535), st.binary(min_size=1, max_size=12))
def test_no_damage_to_a_tar_is_raised(junk: bytes, at: int, patch: bytes) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("x")
        info.size = len(junk)
        archive.addfile(info, io.BytesIO(junk))
    data = bytearray(out.getvalue())
    data[at : at + len(patch)] = patch
    for one in (bytes(data), junk, b"PK" + junk):
        with contextlib.suppress(ArchiveError):
            members_of(one)


# -- logs

PIECES = (
    "ok 1",
    "ok 1 - a",
    " ",
    "# ",
    " # SKIP",
    " ... ",
    "... ok",
    "test a",
    "test_a",
    "✓ ",
    " (1",
    "1",
    "\x1b[1",
    ";1",
)
PIECES += ("--- PASS: ", "FAIL: ", "skipped", "\t", "\r", ">>>>> ", " ms", "[", "a", "(", "()")


@pytest.mark.parametrize("parser", PARSERS)
def test_no_line_takes_a_parser_long(parser: str) -> None:
    """Every pair of pieces: one at the start, the other again and again."""
    lines = [start + piece * (8000 // len(piece)) + "!" for start in PIECES for piece in PIECES]
    began = time.process_time()
    for line in lines:
        read_log(parser, line.encode())
    assert time.process_time() - began < SECONDS + 3


@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("line", ["\n", "ok 1 - a" + " " * 160_000 + "\n", "test_a ok\n", "\x1b[1;" * 1000 + "\n"])
def test_no_log_takes_more_than_its_size(parser: str, line: str) -> None:
    log = line.encode() * (MIB // 16 // len(line.encode()) + 1)
    cheaply(lambda: read_log(parser, log), LogTooLong)


def test_a_directive_of_a_tap_line_ends_its_name() -> None:
    lines = {
        "ok 1 - a # SKIP why": {"a": "skipped"},
        "not ok 2 - b   # TODO later": {"b": "failed"},
        "ok 3 - c # d # SKIP": {"c # d": "skipped"},
        "ok 4 - e#SKIP": {"e#SKIP": "passed"},
        "ok 5 - f # SKIP g # TODO h": {"f": "skipped"},
    }
    for line, outcomes in lines.items():
        assert read_log("parse_log_tap", line.encode()) == outcomes


def test_names_of_cut_ids_are_found_among_many() -> None:
    found = {f"t.py::test[{number:06}" for number in range(100_000)} | {"t.py::test[/a/b]"}
    ids = RunnerIds(found)
    began = time.process_time()
    for number in range(2000):
        assert ids.meant_by(f"t.py::test[{number:05}") == tuple(f"t.py::test[{number:05}{last}" for last in range(10))
    assert ids.meant_by("t.py::test[/b]") == ("t.py::test[/a/b]",)
    assert time.process_time() - began < SECONDS


# -- rows and reports

NONCE = "n"
NESTED = "[" * 990 + "]" * 990
VALUES: dict[str, Any] = {
    "nested": NESTED, "a huge number": "1" + "0" * 400, "a longer number": "1" * 5000, "nothing": "null",
    "not a number": "NaN", "without end": "-Infinity", "half a character": '"\\ud800"', "a table": '{"a": {}}',
    "many": "[" + "[]," * 100_000 + "[]]", "true": "true",
}  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "row",
    [
        '{"test": "a", "outcome": "passed", "seconds": VALUE}', '{"test": VALUE, "outcome": "passed", "seconds": 0}',
        '{"test": "a", "outcome": VALUE}', '{"test": "a", "outcome": "passed", "line": VALUE}',
        '{"value": VALUE, "is": "1"}', '{"value": "k", "is": VALUE}', '{"end": VALUE}', '{"end": 0, "memory": VALUE}',
        '{"broken": VALUE}', "VALUE",
    ],
)  # fmt: skip
def test_no_row_is_raised(row: str, value: str) -> None:
    first = "" if "broken" in row else f'{NONCE} {{"ready": ""}}\n'
    line = f"{first}{NONCE} {row.replace('VALUE', VALUES[value])}\n"
    report = f'{{"nonce": "{NONCE}", "exit": 0, "tests": {{"a": {VALUES[value]}}}}}'
    output = RunOutput(NONCE, 0, line.encode(), report.encode())
    exam = Exam({}, {"a": "a"}, withheld={"a": (Withheld("k", (1,)),)})
    verdict = judge_run(exam, output)
    assert not verdict.passed
    assert 0 <= verdict.evidence.memory_bytes < 1 << 63


def test_rows_and_reports_without_end_are_cheap() -> None:
    ready = f'{NONCE} {{"ready": ""}}\n'.encode()
    floods = [
        b"\n" * (8 * MIB), ready + f"{NONCE} [[],[]]\n".encode() * 400_000,
        ready + f'{NONCE} {{"value": "k", "is": "1"}}\n'.encode() * 200_000,
        ready + NONCE.encode() + b" [" + b"[]," * (2 * MIB) + b"[]]\n",
        ready + f'{NONCE} {{"test": "a", "x": "'.encode() + b"x" * LONGEST_ROW + b'"}\n',
    ]  # fmt: skip
    for flood in floods:
        cheaply(lambda flood=flood: read_rows(flood, NONCE))  # type: ignore[misc]
        assert read_rows(flood, NONCE).tampered
    for report in (
        b"[" + b"[]," * (2 * MIB) + b"[]]",
        b"[" * (8 * MIB),
        b'{"a":' * MIB,
        b'"' + b"\\" * (4 * MIB) + b'"',
    ):
        cheaply(lambda report=report: read_report(report, NONCE))  # type: ignore[misc]
        assert read_report(report, NONCE) is None


def test_values_that_are_dear_to_evaluate_are_cheap() -> None:
    dear = "[" + "1," * 30_000 + "]"
    values = "".join(f"{NONCE} {json.dumps({'value': 'k', 'is': dear})}\n" for _ in range(100))
    rows = f'{NONCE} {{"ready": ""}}\n{values}{NONCE} {{"test": "a", "outcome": "passed"}}\n{NONCE} {{"end": 0}}\n'
    exam = Exam({}, {"a": "a"}, withheld={"a": (Withheld("k", ([1],)),)})
    cheaply(lambda: judge_run(exam, RunOutput(NONCE, 0, rows.encode(), b"{}")))
    many = f'{NONCE} {{"ready": ""}}\n' + f'{NONCE} {{"value": "k", "is": "1"}}\n' * (MOST_TOLD + 1)
    assert read_rows(many.encode(), NONCE).tampered


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "report",
    [
        '{"nonce": "n", "status": 0, "rows": [["f", {"value": VALUE}]]}', '{"nonce": "n", "status": VALUE, "rows": []}',
        '{"nonce": VALUE, "status": 0, "rows": []}', '{"nonce": "n", "status": 0, "rows": VALUE}',
        '{"nonce": "n", "status": 0, "rows": [[VALUE, {"value": "2"}]]}', "VALUE",
    ],
)  # fmt: skip
def test_no_report_of_cases_is_raised(report: str, value: str) -> None:
    line = f"{READY}\n{REPORT}{report.replace('VALUE', VALUES[value])}\n"
    verdict = judge(ExecResult(0, line.encode(), b"", 0.1), (Case("f", "m", "f", (), "2"),), "n")
    assert verdict.judgement in (Judgement.FAIL, Judgement.SUSPECT)


@pytest.mark.parametrize("value", [*VALUES.values(), *('{"reward": %s}' % value for value in VALUES.values())])  # noqa: UP031
def test_no_reward_is_raised(value: str) -> None:
    if "true" in value:
        assert parse_reward(value.encode(), None) == {"reward": 1.0}
        return
    with pytest.raises(BadReward, match=r"^reward.json: .{0,150}$"):
        parse_reward(value.encode(), None)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner), max_leaves=9))
def test_json_is_read_as_it_is(value: object) -> None:
    text = json.dumps(value)
    assert repr(parse_untrusted(text, 1 << 20)) == repr(json.loads(text))
    with pytest.raises(ValueError, match="bytes"):
        parse_untrusted(text, len(text) - 1)


# -- diffs and workflows


@pytest.mark.parametrize(
    "line",
    ["diff --git a/" + " b/" * 80_000, "index " + "0" * 200_000, "--- a/" + "x/" * 100_000, "@@ -" + "1" * 200_000],
)
def test_no_header_of_a_diff_takes_long(line: str) -> None:
    cheaply(lambda: parse_diff(f"{line}\n"), DiffError)


def test_a_header_names_one_file_twice() -> None:
    mode = "old mode 100644\nnew mode 100755\n"
    for name in ("a", "a b", "x b/x", "b/b", "b b/b b", "ü"):
        (patch,) = parse_diff(f"diff --git a/{name} b/{name}\n{mode}")
        assert patch.after == name
    for names in ("a/x b/y", "a/x", "a/ b/", "b/x a/x", "a/xb/x"):
        with pytest.raises(DiffError):
            parse_diff(f"diff --git {names}\n{mode}")


def test_a_workflow_of_many_empty_variables_is_refused() -> None:
    env = "".join(f"  V{number}: ''\n" for number in range(3000))
    steps = "      - run: x\n" * 60
    matrix = "    strategy: {matrix: {n: [" + ", ".join(map(str, range(24))) + "]}}\n"
    text = f"env:\n{env}jobs:\n  all:\n{matrix}    steps:\n{steps}"

    def refused() -> None:
        with pytest.raises(WorkflowError, match="characters"):
            parse_workflow(text.encode())

    cheaply(refused)


# -- examples, measures, Dockerfiles

EXAMPLES = {
    "blank lines": ">>> f()\nTraceback (most recent call last):\n" + "\f\n" * 40_000 + "!",
    "spaces": ">>> f()  # doctest: " + " " * 100_000 + "'",
    "openings": "```py\n" * 20_000,
    "prompts": ">>> 1\n" * 400 + " " * 100_000,
    "a long line": "```python\n" + "1 + " * 30_000 + "1\n```\n",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_documentation_takes_long(name: str) -> None:
    cheaply(lambda: of_text("README.md", EXAMPLES[name]), ValueError)
    cheaply(lambda: of_docstring("a.py", "a", EXAMPLES[name]), ValueError)
    cheaply(lambda: claims_of(EXAMPLES[name].replace(">>>", ":param")))
    cheaply(lambda: read_review(None, EXAMPLES[name].encode()[: 1 << 17]), ReviewError)


def test_examples_still_tell_exceptions_and_may_have_no_directives() -> None:
    (group,) = of_docstring(
        "a.py", "a", ">>> f()\nTraceback (most recent call last):  \n    ...\n  x\nValueError: no\n"
    )
    assert group.exceptions == {"ValueError"}
    assert group.calls("f")
    assert not group.calls("g")
    with pytest.raises(ValueError, match="directives"):
        of_docstring("a.py", "a", ">>> f()  # doctest: +SKIP\n1\n")


def test_functions_that_all_call_each_other_are_not_followed() -> None:
    source = "".join(f"def f{number}(): return f{number + 1}()\n" for number in range(800))
    cheaply(lambda: measure({"a.py": source}), ValueError)


DOCKERFILES = {
    "doubling": "ARG A0=0123456789\n" + "".join(f"ARG A{n + 1}=$A{n}$A{n}\n" for n in range(60)) + "FROM host\n",
    "many values": "ARG A=" + "x" * 10_000 + "\n" + "ARG B=y$A\n" * 2000 + "FROM host\n",
    "cut": "ARG A=" + "x" * 20_000 + "\nARG B=${A##*y*z}\nFROM host\n",
    "cut often": "ARG A=" + "x" * 500 + "\n" + "ARG B=${A##*y}\n" * 500 + "FROM host\n",
    "spaces": "# escape = x" + " " * 30_000 + "y\nFROM host\n",
    "backslashes": "FROM host\nRUN a" + "\\ " * 15_000 + "\n",
    "flags": "FROM host\nRUN --a=" + "'x'" * 10_000 + '" b\n',
    "heredocs": "FROM host\nRUN " + "<<A " * 8000 + "\n",
}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_no_dockerfile_takes_more_than_its_size(name: str) -> None:
    cheaply(lambda: make_plan(parse_dockerfile(DOCKERFILES[name], "Dockerfile"), "", {}), ImageError)


@pytest.mark.parametrize(
    "pattern", ["*a" * 30 + "b", "a*" * 60, "**/a/" * 20 + "b", "**/" * 60 + "b", "[a-z]*" * 40 + "!"]
)
@pytest.mark.parametrize("path", ["a" * 250, "a/" * 50 + "a"])
def test_no_pattern_takes_long(pattern: str, path: str) -> None:
    def match() -> None:
        ignored = Ignored.from_text(pattern)
        ignored.excludes(path)
        Glob(pattern).matches(path)

    quickly(match, ValueError, seconds=SECONDS / 5)
