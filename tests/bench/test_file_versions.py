"""The diffs of a file, applied one after the other to its first version, give the file as it is."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.bench import Rebuild, read_repository, rebuilds
from etude.bench.file_versions import diff_of, made_versions
from etude.bench.state_tracking import rebuild_prompt, rebuilt, score_rebuild, unchanged_score

LINE = st.text("ab `\t\r\x0c\x85\u2028ü", max_size=6) | st.text("`", max_size=9)
LINES = st.lists(LINE, max_size=12).map("\n".join)
NO_END = "\\ No newline at end of file\n"


def patched(text: str, diff: str) -> str:
    """Apply a unified diff; every line that it says is there must be there."""
    old, new, at = re.findall(r"[^\n]*\n|[^\n]+", text), [], 0
    lines = re.findall(r"[^\n]*\n", diff)[2:]
    for place, line in enumerate(lines):
        body = line[1:]
        if place + 1 < len(lines) and lines[place + 1] == NO_END:
            body = body[:-1]
        if line.startswith("@@"):
            start, length = re.match(r"@@ -(\d+)(?:,(\d+))? ", line).groups()
            first = int(start) - (length != "0")
            new, at = [*new, *old[at:first]], first
        elif line[0] in " -":
            assert old[at] == body
            at += 1
            new += [body] if line[0] == " " else []
        elif line[0] == "+":
            new.append(body)
    return "".join([*new, *old[at:]])


def applied(item: Rebuild) -> str:
    text = item.first
    for diff in item.diffs:
        text = patched(text, diff)
    return text


@given(LINES, st.integers(1, 9), st.integers(0, 99))
def test_made_changes_end_in_the_file(text: str, changes: int, seed: int) -> None:
    versions = made_versions(text, changes, random.Random(seed))
    assert len(versions) == changes + 1
    assert versions[-1] == text
    assert len(set(versions)) == len(versions)
    assert versions == made_versions(text, changes, random.Random(seed))
    diffs = [diff_of("a.py", *pair) for pair in pairwise(versions)]
    assert applied(Rebuild("a.py", versions[0], tuple(diffs), text, True)) == text


@given(LINES, LINES)
def test_an_exact_answer_is_no_character_off_with_or_without_talk(first: str, final: str) -> None:
    item = Rebuild("a.py", first, (diff_of("a.py", first, final),), final, True)
    prompt = rebuild_prompt(item)
    (fence,) = re.findall(r"between two lines (`+),", prompt.user)
    end = "" if final.endswith("\n") or not final else "\n"
    assert score_rebuild(item, rebuilt(item, f"{final}{end}{fence}\nThe file `b.py`", plain=True))["wrong"] == 0
    for answer in (f"Sure:\n{fence}python\n{final}{end}{fence}\nOr:\n{fence}\nb\n{fence}", f"{fence}\n{final}"):
        assert score_rebuild(item, rebuilt(item, answer, plain=False)) == {"characters": 0, "wrong": 0}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """app.py with five versions, a binary one before them; new.py with one; big.py is too large."""
    root = tmp_path / "app"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    for content in (b"\0\xff" * 200, *(_code("app", n).encode() for n in range(1, 6))):
        (root / "app.py").write_bytes(content)
        commit(root)
    (root / "new.py").write_text(_code("new", 1))
    (root / "big.py").write_text(_code("big", 1) * 30)
    commit(root)
    return root


def _code(name: str, number: int) -> str:
    lines = [f"def {name}_{n}(value):\n    return value + {n if n >= number else n * 11}\n" for n in range(1, 9)]
    return "import app\n\n\n" * (name != "app") + "\n\n".join(lines)


def git(root: Path, *words: str) -> None:
    names = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", "-C", root, *words], check=True, env={**os.environ, **names})


def commit(root: Path) -> None:
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "x")


def series_of(root: Path, changes: Sequence[int], count: int = 2) -> list[list[Rebuild]]:
    return rebuilds(read_repository(root), count, changes, 1000, 0)


def test_versions_come_out_of_the_history_where_it_is_long_enough(repository: Path) -> None:
    found = {one[0].path: one for one in series_of(repository, [1, 4])}
    assert {path: one[0].made for path, one in found.items()} == {"app.py": False, "new.py": True}
    for one in found.values():
        for item, changes in zip(one, (1, 4), strict=True):
            assert len(item.diffs) == changes
            assert applied(item) == item.final == (repository / item.path).read_text()
            assert 0 < unchanged_score(item) < 1
    assert found["app.py"][1].first == _code("app", 1)
    assert series_of(repository, [1, 4]) == series_of(repository, [4, 1][::-1])
    deeper = series_of(repository, [5], 1)
    assert deeper[0][0].made, "before its five versions it was no text"


def test_a_file_that_was_away_has_no_history_before_that(repository: Path) -> None:
    for text in (_code("our", 1), None, _code("our", 2), _code("our", 3)):
        if text is None:
            (repository / "our app.py").unlink()
        else:
            (repository / "our app.py").write_text(text)
        commit(repository)
    for changes, made in ((1, False), (2, True)):
        found = {one[0].path: one[0] for one in series_of(repository, [changes], 3)}
        assert found["our app.py"].made is made
        assert applied(found["our app.py"]) == _code("our", 3)


def test_secrets_of_the_past_are_not_shown(repository: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 4
    for line in (f'TOKEN = "{token[:40]}"\n', "TOKEN = None\n"):
        (repository / "app.py").write_text(line + _code("app", 5))
        commit(repository)
    (one,) = series_of(repository, [2], 1)
    assert not one[0].made
    assert "ghp_" not in one[0].first + "".join(one[0].diffs)
    assert "TOKEN" in one[0].diffs[0]


def test_a_folder_without_git_has_made_changes_and_files_follow_their_imports(repository: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("app.py", "new.py"):
        text = (repository / name).read_text().replace("import app", "import zebra")
        (plain / name.replace("app", "zebra")).write_text(text)
    found = read_repository(plain)
    assert [file.name for file in found.files] == ["zebra.py", "new.py"]
    assert all(one[0].made for one in rebuilds(found, 2, [1], 1000, 0))
