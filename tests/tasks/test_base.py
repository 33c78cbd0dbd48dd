"""The host's base: a solution that it shows is found by the gate, and no verdict on such a task is called sealed."""

from __future__ import annotations

import string
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.cheats.environments import shown_by_the_base

from etude.sandbox.contract import Sandboxes
from etude.sandbox.images.host_base import PYTHON
from etude.tasks import Environments, Grader
from etude.tasks.box import list_files
from etude.tasks.environment import HostIndexes, environments
from etude.tasks.gate.result import GateOutcome
from etude.tasks.gate.single import Gate
from etude.tasks.seal import base_scan as base_module
from etude.tasks.seal import needles_of
from etude.tasks.seal.base_scan import Base, HostIndex, list_base, scan_base
from etude.tasks.seal.leak_patterns import FileVersions, Needle

from .conftest import Boxes
from .test_scan import WRAPS

_STDLIB, _PREFIX = Path(sysconfig.get_path("stdlib")).resolve(), Path(sys.base_prefix).resolve()
LIBRARY = str(_STDLIB if _PREFIX.is_relative_to("/usr") else Path(PYTHON) / _STDLIB.relative_to(_PREFIX))
"""Where boxes see Python's own."""
SMALL = (f"{LIBRARY}/json", f"{LIBRARY}/wsgiref")
"""Folders of the base that are read in no time."""
LINE = "        raise TypeError(f'Object of type {o.__class__.__name__} '"
"""Of json/encoder.py."""


async def test_a_task_whose_solution_is_installed_on_the_host_is_refused(grader: Grader, tmp_path: Path) -> None:
    result = await Gate(grader).examine(shown_by_the_base().write(tmp_path))
    assert result.outcome is GateOutcome.LEAKS
    assert any(leak.startswith(f"{LIBRARY}/colorsys.py holds colorsys.py:") for leak in result.leaks)


async def test_an_image_of_its_own_shows_the_base_too_if_it_is_made_from_it(
    sandboxes: Sandboxes, tmp_path: Path
) -> None:
    task = shown_by_the_base().write(tmp_path)
    environment = task.directory / "environment"
    (environment / "Dockerfile").write_text("FROM host\nWORKDIR /srv/colors\nCOPY --chown=agent repo .\n")
    environments = Environments(sandboxes)
    prepared = await environments.prepare(task)
    assert prepared.on_base
    assert not prepared.bare
    found = {finding.file for finding in (await environments.prove(task)).findings}
    assert f"{LIBRARY}/colorsys.py" in found
    assert not any(file.startswith("/srv") for file in found)
    assert await environments.base_shows_solution(task)


async def test_a_line_of_the_base_is_found_by_the_book(
    sandboxes: Sandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file that is called otherwise; the book is written once, and again when it is damaged."""
    monkeypatch.setattr(base_module, "_SHOWN", SMALL)
    diff = f"--- a/a.py\n+++ b/a.py\n@@ -1,1 +1,2 @@\n def default(o):\n+{LINE}\n"
    needles = needles_of(diff, {}, {"a.py": b"def default(o):\n"})
    needles = type(needles)((Needle(LINE.replace(" ", "").encode(), False, "a.py:2: raise"), *needles.items))
    said: list[str] = []
    base = await list_base(sandboxes)
    assert all(path.startswith(SMALL) for path in base.sizes)
    assert await list_base(sandboxes) == base
    for damage in ("", "none", "cut", "nonsense"):
        (path,) = tmp_path.glob("*.base") if damage else (tmp_path / f"{base.digest}.base",)
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:-30])
        elif damage == "nonsense":
            path.write_bytes(b"PK\3\4 nothing")
        said.clear()
        environments = Environments(sandboxes, host_indexes=HostIndexes(tmp_path, said.append))
        host_index, _ = await environments._load_host_index()
        assert len(said) == (damage != "none")
        report = await scan_base(sandboxes, base, needles, host_index)
        assert [finding.file for finding in report.findings] == [f"{SMALL[0]}/encoder.py"]
        assert (await scan_base(sandboxes, base, needles)).findings == ()


async def test_a_book_that_cannot_be_kept_is_used_all_the_same(
    sandboxes: Sandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_module, "_SHOWN", SMALL)
    (tmp_path / "file").touch()
    said: list[str] = []
    host_index, _ = await Environments(
        sandboxes, host_indexes=HostIndexes(tmp_path / "file", said.append)
    )._load_host_index()
    assert len(host_index.numbers) > 100
    assert "cannot be written" in said[1]


async def test_of_several_states_of_a_host_the_last_is_kept(
    sandboxes: Sandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    for number in range(1, 3):
        monkeypatch.setattr(base_module, "_SHOWN", SMALL[:number])
        await Environments(sandboxes, host_indexes=HostIndexes(tmp_path))._load_host_index()
        (path,) = tmp_path.glob("*.base")
        digests.add(path.name)
    assert len(digests) == 2


@settings(deadline=None)
@given(
    st.lists(st.text(string.ascii_lowercase + "(): =", min_size=30, max_size=60), min_size=1, max_size=6, unique=True),
    st.lists(st.sampled_from(list(WRAPS)), max_size=2),
    st.integers(0, 3),
)
def test_a_book_knows_each_telling_line_and_no_other(lines: list[str], wraps: list[str], held: int) -> None:
    without_whitespace = [line.replace(" ", "").encode() for line in lines]
    data = "\r\n  ".join([lines[0], *lines]).encode()
    for name in wraps:
        data = WRAPS[name](data)
    writing = base_module._HostIndexBuilder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_module, "_AT_ONCE", held)
        writing._add("/a/first", b"nothing of it that anybody would look for\n" * 2)
        writing._add("/a/second", data)
        writing._add("/a/third", data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "book")
        path.write_bytes(writing.host_index().dump())
        host_index = HostIndex.read(path)
    for line in without_whitespace:
        wanted = ["/a/second"] if len(line) >= 24 else []
        assert host_index.files_with([Needle(line, False, "")]) == wanted
        assert host_index.files_with([Needle(line + b"x", False, "")]) == []
        assert host_index.files_with([Needle(line, False, "", whole=False)]) == []


async def test_the_base_is_one_for_every_store(sandboxes: Sandboxes, boxes: Boxes) -> None:
    first = await environments.list_base(sandboxes)  # Known already, where another test has asked.
    async with boxes() as others:
        assert await list_base(others) == first
    assert len(first.sizes) > 1000


def test_the_listing_tells_what_this_user_sees(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for name, text in (("a/b/one", "123"), ("two\nlines \udcff", "12"), ("out/three", "1")):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (top / "link").symlink_to(top / "a")
    (top / "file").symlink_to(top / "a/b/one")
    (tmp_path / "other").symlink_to(top)
    found = {path: (size, changed) for size, changed, path in list_files.files_below(str(top), str(top / "out"))}
    assert {path: size for path, (size, _) in found.items()} == {f"{top}/a/b/one": 3, f"{top}/two\nlines \udcff": 2}
    assert all(changed == Path(path).stat().st_mtime_ns for path, (_, changed) in found.items())
    for nothing in ("other", "absent", "top/a/b/one"):
        assert not list(list_files.files_below(str(tmp_path / nothing), ""))


async def test_the_base_is_listed_whatever_its_system_brings(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_module, "_SHOWN", SMALL)
    asked: list[str] = []
    run = base_module.run

    async def without_find(box: Any, command: list[str], *words: Any, **more: Any) -> bytes:
        asked.append(command[0])
        return await run(box, command, *words, **more) if command[0] != "find" else b""

    monkeypatch.setattr(base_module, "run", without_find)

    base = await list_base(sandboxes)
    assert asked
    assert base.sizes[f"{SMALL[0]}/encoder.py"] == (_STDLIB / "json/encoder.py").stat().st_size
    assert all(base.sizes[path] for path in base.sizes if not path.endswith("__init__.py"))


def test_copies_are_called_alike_and_are_of_the_like_size() -> None:
    sizes = {"/usr/a/fares.py": 100, "/usr/b/fares.py": 5000, "/usr/my-fares.py": 100, "/usr/c/fares.pyc": 100}
    assert Base("", sizes).copies([FileVersions("fares.py", 120, (), ())]) == ["/usr/a/fares.py"]
    packages = {"/usr/a/rides/__init__.py": 100, "/usr/a/other/__init__.py": 100}
    assert Base("", packages).copies([FileVersions("rides/__init__.py", 120, (), ())]) == ["/usr/a/rides/__init__.py"]
    assert Base("", sizes).copies([]) == []


FILE = "".join(f"def number_{n}_of_many(first, second):\n    return first * {n} + second\n\n" for n in range(20))
FIX = """--- a/m.py
+++ b/m.py
@@ -59,2 +59,2 @@
 def number_19_of_many(first, second):
-    return first * 19 + second
+    return first * 19 - second
"""


@pytest.mark.parametrize(
    ("copy", "shown"),
    [
        (FILE.replace("19 +", "19 -"), True),
        (FILE.replace("19 +", "19 -").replace("first * 3", "first * 33"), True),
        (FILE.replace("19 +", "19 -").replace("of_many", "of_others"), False),
        (FILE, False),
        ("def number_19_of_many(first, second):\n    return first * 19 - second\n", False),
    ],
    ids=["the fixed file", "another version", "another file", "the same file", "too little of it"],
)
def test_a_twin_is_another_version_of_the_file_that_says_the_solution(copy: str, shown: bool) -> None:
    (versions,) = needles_of(FIX, {}, {"m.py": FILE.encode()}).file_versions
    assert bool(versions.leaked_in(b"".join(copy.encode().split()))) is shown
    assert versions.matches_path("/a/m.py")
    assert versions.matches_path("/a.whl!m.py")
    assert not versions.matches_path("/a/other-m.py")


def test_a_copy_of_a_file_that_the_reference_adds_is_known_by_its_own_lines() -> None:
    added = "".join(f"+{line}\n" for line in FILE.splitlines())
    diff = f"--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,{len(FILE.splitlines())} @@\n{added}"
    diff += "--- a/gone.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-def gone(of, no, interest): pass\n"
    (versions,) = needles_of(diff, {}, {"gone.py": b"def gone(of, no, interest): pass\n"}).file_versions
    assert (versions.name, versions.size) == ("new.py", len(FILE))
    assert Base("", {"/usr/lib/x/new.py": len(FILE)}).copies([versions]) == ["/usr/lib/x/new.py"]
    assert versions.leaked_in(b"".join(FILE.encode().split()))
    assert versions.leaked_in(b"".join(FILE.replace("first * 3", "first * 33").encode().split()))
    assert not versions.leaked_in(b"".join(FILE.replace("of_many", "of_others").encode().split()))
