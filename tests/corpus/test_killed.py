"""kill -9 while a corpus is built: no process stays behind, and the same call goes on with the parts that are there."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import hashlib, sys
from pathlib import Path
from etude.corpus import build, gather
from etude.corpus.sources import tables
from etude.recipe.corpus import CorpusRecipe

if __name__ == "__main__":
    build._SMALL, tables._RANGE = 0, 40_000
    recipe = CorpusRecipe(sources=[], code={"rows": {"path": sys.argv[1]}})
    gathered = gather(recipe, Path(sys.argv[2]), processes=int(sys.argv[3]))
    texts = [document.text for held_out in (False, True) for document in gathered.documents(held_out=held_out)]
    print(len(texts), hashlib.sha256(repr(texts).encode()).hexdigest(), gathered.report, gathered.identity)
"""


def start(folder: Path, work: str, processes: int) -> subprocess.Popen[str]:
    command = [sys.executable, folder / "program.py", folder / "rows.jsonl", folder / work, str(processes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_build_goes_on_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    rng = random.Random(1)
    with (tmp_path / "rows.jsonl").open("w") as file:
        for number in range(1000):
            names = ["".join(rng.choices("abcdefgh", k=6)) for _ in range(60)]
            text = "".join(f"{name} = {other}({name})\n" for name, other in itertools.pairwise(names))
            file.write(json.dumps({"path": f"{number}.py", "content": text}) + "\n")
    (tmp_path / "work").mkdir()

    killed = start(tmp_path, "work", 2)
    while len(list((tmp_path / "work").glob("part-*.parquet"))) < 3:
        assert killed.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    workers = psutil.Process(killed.pid).children(recursive=True)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len(workers) >= 2
    assert not psutil.wait_procs(workers, timeout=60)[1]

    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("part-*.parquet")}
    resumed, fresh = start(tmp_path, "work", 2), start(tmp_path, "fresh", 1)
    said = resumed.communicate()[0]
    assert said == fresh.communicate()[0]
    now = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("part-*.parquet")}
    assert kept.items() <= now.items()
    assert len(now) > len(kept)
    assert not list((tmp_path / "work").glob(".part-*"))
