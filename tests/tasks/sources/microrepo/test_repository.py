from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from etude.tasks import Split
from etude.tasks.sources.microrepo import KINDS, pool_of
from etude.tasks.sources.microrepo.repository import CHECK, draw_repository


def check(files: dict[str, str], folder: Path) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    done = subprocess.run([sys.executable, "-S", CHECK], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == (0 if done.stdout == "ok\n" else 1)
    return done.stdout


def test_the_check_shows_the_bug_and_then_that_it_is_gone(tmp_path: Path) -> None:
    for seed in range(20):
        repository = draw_repository(pool_of(Split.TRAIN), random.Random(seed), KINDS)
        files, damage = repository.files(), repository.damage
        folder = tmp_path / str(seed)
        folder.mkdir()
        said = check(files, folder)
        assert said.startswith(f"FAIL {damage.function.name}(")
        assert said.count("\n") == 1
        assert 1 <= len(repository.modules) <= 3
        lines = files[damage.file].split("\n")
        assert lines[damage.line - 1] == damage.wrong != damage.right
        lines[damage.line - 1] = damage.right
        assert check({**files, damage.file: "\n".join(lines)}, folder) == "ok\n"
        assert {path.name for path in folder.iterdir()} == set(files)


def test_broken_code_is_a_short_line_without_paths(tmp_path: Path) -> None:
    repository = draw_repository(pool_of(Split.TRAIN), random.Random(1), KINDS)
    file = repository.damage.file
    assert check({**repository.files(), file: "def f(:\n"}, tmp_path) == f"FAIL {file} line 1: syntax error\n"
    assert check({**repository.files(), file: "1 / 0\n"}, tmp_path) == f"FAIL {file}: ZeroDivisionError\n"
