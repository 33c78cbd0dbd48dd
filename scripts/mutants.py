"""Make small faults in the source, one after another, and see which of them the tests notice.

    mutants.py [--number 300] [--seed 2026] [--room sandbox] [--tests tests/sandbox] [--trees 2]

A mutation is drawn over all of `src` by the seed. Only tests that execute its statement are run, the shortest first,
until one fails and passes again without the fault. Which tests those are is measured by one run of CI's tests (those of
`make test` and `make test-full`) with probes at the mutations that were drawn, kept until the code changes.

Every result is a row of docs/mutants/rows.jsonl as soon as it is known, so that the same command goes on where it was
stopped; docs/mutants/survivors.md is written from the rows. Faults are made in copies of the tree, never in yours.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from mutations import Mutation, mutations_below, with_probes
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from etude.journal import code_digest

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".pytest_cache" / "mutants"
_UNPROBED = re.compile(r"src/etude/(tasks/box|model/precision/kernels/in_triton)/")
"""Scripts that tasks know by their digest, and kernels, which a compiler of their own reads."""
PAGES = ROOT / "docs" / "mutants"
ROWS = PAGES / "rows.jsonl"
OF_CI = "not soak and not gpu"
BATCHES = (25, 250)
"""How many of the shortest covering tests run first: starting pytest with thousands takes longer than most kills."""


def measure(folder: Path, tests: str, drawn: Sequence[Mutation]) -> None:
    """Run CI's tests once in a copy of the tree that has a probe at each mutation."""
    reached = folder / "reached"
    reached.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="etude-mutants-") as place:
        tree = Tree(Path(place, "tree"))
        for file in {mutation.file for mutation in drawn if not _UNPROBED.match(mutation.file)}:
            lines = {number: mutation.line for number, mutation in enumerate(drawn) if mutation.file == file}
            source = (tree.root / file).read_text(encoding="utf-8")
            (tree.root / file).write_text(with_probes(source, lines), encoding="utf-8")
        command = [tree.python, "-m", "pytest", "-p", "noting", "-n", "3", "--dist", "loadfile", "-m", OF_CI, tests]
        environment = {**_noting(folder / "tests.jsonl"), "ETUDE_REACHED": str(reached)}
        code = subprocess.call(command, cwd=tree.root, env=environment)
    if code not in (0, 1):  # Some tests may fail: they are not asked about faults.
        shutil.rmtree(folder)
        raise SystemExit(2 if code in (4, 5) else code)  # pytest found no such tests
    (folder / "complete").touch()


def _noting(notes: Path) -> dict[str, str]:
    """An environment in which pytest finds the plugin, and the plugin its file."""
    paths = os.pathsep.join(filter(None, (str(ROOT / "scripts"), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": paths, "ETUDE_TEST_NOTES": str(notes)}


def _read(notes: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()] if notes.exists() else []


class Covering:
    """Which tests execute a mutation's statement, and how long each takes."""

    def __init__(self, folder: Path) -> None:
        self.seconds = {row["test"]: row["seconds"] for row in _read(folder / "tests.jsonl") if not row["failed"]}
        self.reached: dict[int, set[str]] = {}
        for notes in (folder / "reached").iterdir():
            for line in notes.read_text(encoding="utf-8").splitlines():
                number, test = line.split(" ", 1)
                self.reached.setdefault(int(number), set()).add(test)

    def tests(self, number: int, mutation: Mutation) -> list[str]:
        """The shortest first. Where no probe can tell, inside boxes and kernels, all tests of the mutation's room."""
        room = Path(mutation.file).parts[2]
        found = self.reached.get(number) or {test for test in self.seconds if room in re.split(r"[/_.]", test)}
        return sorted(found & self.seconds.keys(), key=lambda test: self.seconds[test])


class Tree:
    """A copy of the project in which faults are made, with an environment that imports the copy."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.running: subprocess.Popen[bytes] | None = None
        self.stopped = False
        copied = shutil.ignore_patterns(".git", ".venv", "runs", ".*_cache", "__pycache__", ".hypothesis")
        shutil.copytree(ROOT, folder, ignore=copied, symlinks=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / ".venv")], check=True)
        ours = next(Path(path) for path in sys.path if path.endswith("site-packages"))
        its = next((folder / ".venv").glob("lib/python*/site-packages"))
        # As a plain path, the file in it that names our own source is not read.
        (its / "copy.pth").write_text(f"{folder / 'src'}\n{folder / 'scripts'}\n{ours}\n", encoding="utf-8")
        self.python = str(folder / ".venv/bin/python")
        for script in Path(sys.executable).parent.iterdir():
            copy = folder / ".venv/bin" / script.name
            if not copy.exists() and script.is_file():
                text = script.read_bytes()
                copy.write_bytes(text.replace(str(ROOT / ".venv").encode(), str(folder / ".venv").encode()))
                copy.chmod(0o755)

    def failing(self, tests: Sequence[str], seconds: float) -> str | None:
        """The test that failed first; what did not end in time has failed."""
        if self.stopped:
            return "stopped"
        names = self.root / ".tests"
        names.write_text("\n".join(tests), encoding="utf-8")
        notes = self.root / ".notes"
        notes.unlink(missing_ok=True)
        command = [self.python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        self.running = started = subprocess.Popen(
            [*command, "-p", "noting", f"@{names}"],
            cwd=self.root,
            env=_noting(notes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = started.wait(seconds)
        except subprocess.TimeoutExpired:
            self._end()
            return "no end"
        if code == 0:
            return None
        return next((row["test"] for row in _read(notes) if row["failed"]), "no start")

    def stop(self) -> None:
        """End the tests that are running, and begin no others."""
        self.stopped = True
        self._end()

    def _end(self) -> None:
        if self.running is not None and self.running.poll() is None:
            os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()

    def judge(self, mutation: Mutation, tests: list[str], covering: Covering) -> dict[str, Any]:
        file, begun = self.root / mutation.file, time.monotonic()
        source, killer = file.read_bytes(), None
        file.write_bytes(mutation.apply(source))
        try:
            for batch in _batches(tests):
                killer = self.failing(batch, 120 + 5 * sum(covering.seconds[test] for test in batch))
                if killer is not None:
                    break
        finally:
            file.write_bytes(source)
        if killer in covering.seconds and self.failing([killer], 60 + 10 * covering.seconds[killer]) is not None:
            # It fails with and without the fault, so it says nothing about it.
            return {"tests": len(tests), "killer": None, "unclear": killer}
        return {"tests": len(tests), "killer": killer, "seconds": round(time.monotonic() - begun, 1)}


def _batches(tests: list[str]) -> list[list[str]]:
    bounds = [0, *(bound for bound in BATCHES if bound < len(tests)), len(tests)]
    return [tests[start:end] for start, end in pairwise(bounds) if start < end]


def identity(mutation: Mutation) -> dict[str, Any]:
    """What a row calls the mutation; its line is as the source was when it was drawn."""
    return {"file": mutation.file, "line": mutation.line, "before": mutation.before, "after": mutation.after}


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("file", "line", "before", "after"))


def _alive(rows: list[dict[str, Any]]) -> int:
    return sum(row["killer"] is None for row in rows)


def write_page(rows: list[dict[str, Any]]) -> None:
    """How many were killed, and each that was not."""
    alive = [row for row in rows if row["killer"] is None]
    text = (
        "# Mutants\n\nFaults that `make mutants` made in the source and that no test of CI noticed.\n"
        f"\n{len(rows) - len(alive)} of {len(rows)} were noticed.\n"
        "\n| place | was | became | tests that execute it |\n|---|---|---|---|\n"
    )
    for row in sorted(alive, key=lambda row: (row["file"], row["line"])):
        before, after = (" ".join(str(row[side]).split()).replace("|", "\\|")[:60] for side in ("before", "after"))
        text += (
            f"| `{row['file'].removeprefix('src/etude/')}:{row['line']}` | `{before}` | `{after}` | {row['tests']} |\n"
        )
    (PAGES / "survivors.md").write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=300, help="how many faults")
    parser.add_argument("--seed", type=int, default=2026, help="which faults are drawn")
    parser.add_argument("--room", default="", help="draw from one folder of src/etude")
    parser.add_argument("--tests", default="tests", help="which tests may notice them")
    parser.add_argument("--trees", type=int, default=2, help="how many faults are tried at once")
    told = parser.parse_args()
    offered = mutations_below(ROOT, f"src/etude/{told.room}")
    if not offered:
        parser.error(f"expected a folder of src/etude with code in it, found {told.room!r}")
    drawn = random.Random(told.seed).sample(offered, min(told.number, len(offered)))
    asked = f"{told.tests}-{told.room}-{told.number}-{told.seed}".replace("/", "-")
    folder = CACHE / f"{code_digest()}-{asked}"
    if not (folder / "complete").exists():
        shutil.rmtree(CACHE, ignore_errors=True)
        measure(folder, told.tests, drawn)
    covering = Covering(folder)
    rows = _read(ROWS)
    known = set(map(_name, rows))
    todo = [(number, mutation) for number, mutation in enumerate(drawn) if _name(identity(mutation)) not in known]
    PAGES.mkdir(exist_ok=True)
    lock, stopped = threading.Lock(), False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="etude-mutants-") as place, Progress(*columns) as progress:
        trees = [Tree(Path(place, str(number))) for number in range(told.trees)]
        free = list(trees)
        bar = progress.add_task("mutants", total=len(drawn), completed=len(drawn) - len(todo))

        def one(number: int, mutation: Mutation) -> None:
            with lock:
                tree = free.pop()
            row = {**identity(mutation), **tree.judge(mutation, covering.tests(number, mutation), covering)}
            if stopped:
                return  # Its tests were ended, not failed.
            with lock:
                free.append(tree)
                rows.append(row)
                with ROWS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                write_page(rows)
                progress.update(bar, advance=1, description=f"mutants, {_alive(rows)} alive")

        with ThreadPoolExecutor(told.trees) as pool:
            try:
                for done in [pool.submit(one, *each) for each in todo]:
                    done.result()
            except KeyboardInterrupt:
                stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                for tree in trees:
                    tree.stop()
    if stopped:
        print("stopped: the same command goes on with the rest", file=sys.stderr)
        return 130
    names = {_name(identity(mutation)) for mutation in drawn}
    rows = [row for row in rows if _name(row) in names]
    alive = _alive(rows)
    print(json.dumps({"mutants": len(rows), "killed": len(rows) - alive, "alive": alive}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
