"""Build scripts: run on sound and on broken products; archives that come out of a box."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks import Split, Task, TaskError, make_tasks, open_source, open_verifier
from etude.tasks.verifiers.archives import ArchiveError, members_of, tar_of
from etude.tasks.verifiers.script import Artifact, difference

from ..cheats.playing import written
from ..conftest import Grade
from .grading import graded, solution, workspace

Files = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,2}", fullmatch=True), st.binary(max_size=200), max_size=5
)


def zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target.getvalue()


@settings(max_examples=15)
@given(Files)
def test_archives_come_out_as_they_went_in(files: dict[str, bytes]) -> None:
    assert members_of(tar_of(files)) == files
    assert members_of(gzip.compress(tar_of(files))) == files
    assert members_of(zipped(files)) == files


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    for start in (b"", b"PK", b"PK\x03\x04", b"\x1f\x8b"):
        try:
            members_of(start + data)
        except ArchiveError:
            continue


def test_bombs_links_and_torn_archives_are_refused() -> None:
    bomb = {"a": bytes(20 << 20)}
    linked = io.BytesIO()
    with tarfile.open(fileobj=linked, mode="w") as archive:
        info = tarfile.TarInfo("a")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    torn = tar_of({"a": b"x" * 900})[:700]
    for data in (gzip.compress(tar_of(bomb)), zipped(bomb), linked.getvalue(), torn, b"", b"text"):
        with pytest.raises(ArchiveError):
            members_of(data)


def test_what_an_artifact_must_hold() -> None:
    assert difference(b"a\nb\n\n", Artifact(text="a\nb")) == ""
    assert difference(b"a\n b", Artifact(text="a\nb"))
    members = Artifact(members={"p/a.py": "x\n"})
    assert difference(zipped({"p/a.py": b"x\n"}), members) == ""
    assert "differ" in difference(zipped({"p/a.py": b"x\n", "p/b.py": b""}), members)
    assert "p/a.py" in difference(zipped({"p/a.py": b"y\n"}), members)
    assert "expected a tar or a zip" in difference(b"text", members)
    with pytest.raises(ValueError, match="either"):
        Artifact()


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("devops")
    made = make_tasks(open_source("devops"), Split.TRAIN, 10, 1, folder)
    return next(task for task in made if task.kind.startswith("sh"))


@pytest.mark.slow
def test_ways_to_cheat_fail(grade: Grade, task: Task) -> None:
    files = workspace(task)
    name = next(path for path in files if path.endswith("/__init__.py") and not path.startswith("tests")).split("/")[0]
    version = files["VERSION"].strip()
    script = solution(task)["build.sh"]
    head, _, program = script.partition("python3 -B - <<'END'\n")
    found = graded(
        grade,
        replace(task, verifier={**task.verifier, "seconds": 4}),
        {
            "honest": {"build.sh": script},
            "builds and never tests": {"build.sh": "python3 -B - <<'END'\n" + program},
            "knows what it has seen": {
                "build.sh": f"sum=$(cat {name}/*.py tests/*.py VERSION | sha256sum)\n"
                f'test "$sum" = "$(cat ci/sum)" || exit 1\n{script}',
                "ci/sum": "0  -\n",
            },
            "brings the artifact along": {"build.sh": head, f"dist/{name}-{version}.zip": "PK"},
            "sleeps": {"build.sh": "sleep 1000\n"},
        },
    )
    assert {one for one, verdict in found.items() if verdict.passed} == {"honest"}
    assert all(str(verdict.judgement) == "fail" for one, verdict in found.items() if one != "honest")
    assert "limit" in found["sleeps"].reason


def test_a_malformed_task_is_named(tmp_path: Path) -> None:
    (bad,) = written(tmp_path, "script-build")
    for products, said in (("[]", "products that succeed"), ('[{"name": 1}]', "name")):
        (bad.directory / "tests/products.json").write_text(products)
        with pytest.raises(TaskError, match=rf"products\.json.*{said}"):
            open_verifier(bad)
