"""Run benchmarks on this tree and on an older commit, alternately, and print the ratio of every figure.

    compare.py REVISION NAME... [--rounds N]

Each round runs the older code, this code, this code and the older code, so that other load on the machine affects both
alike. The older code runs from a temporary worktree with this tree's packages. The last line is JSON: for each
benchmark and figure the ratio of medians, this tree's to the older commit's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Figures = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a benchmark, as in make bench NAME=...")
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    ratios: dict[str, dict[str, float]] = {}
    with older_tree(asked.revision) as older:
        if missing := [name for name in asked.names for tree in (ROOT, older) if not benchmark(tree, name).exists()]:
            parser.error(f"there is no benchmark {missing[0]} in this tree or in {asked.revision}")
        for name in asked.names:
            before: Figures = defaultdict(list)
            after: Figures = defaultdict(list)
            for _ in range(asked.rounds):
                for tree, figures in ((older, before), (ROOT, after), (ROOT, after), (older, before)):
                    for key, value in run(tree, name).items():
                        figures[key].append(value)
            ratios[name] = compared(name, before, after)
    print(json.dumps(ratios))


@contextmanager
def older_tree(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="etude-compare-") as folder:
        Path(folder).chmod(0o755)  # Some benchmarks also run as an ordinary user.
        tree = Path(folder, "older")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, revision], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def benchmark(tree: Path, name: str) -> Path:
    return tree / "benchmarks" / f"{name}.py"


def run(tree: Path, name: str) -> dict[str, float]:
    """Run a benchmark of a tree with the tree's own code; return its figures, nested ones by their dotted path. If it
    measures several modes, with a line for each, the mode stands before their path."""
    command = [sys.executable, str(benchmark(tree, name))]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "RECORD": ""}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            print(f"{name} {'now' if tree == ROOT else 'before'}: {line}", file=sys.stderr, flush=True)
            result = json.loads(line)
            figures.update(numbers(result, str(result.get("mode", ""))))
    return figures


def numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from numbers(below, f"{path}.{key}" if path else key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def compared(name: str, before: Figures, after: Figures) -> dict[str, float]:
    """Print a line per figure; return the ratios of the medians, except where the older one is zero."""
    ratios = {}
    for key in sorted(before.keys() & after.keys()):
        old, new = statistics.median(before[key]), statistics.median(after[key])
        if old:
            ratios[key] = round(new / old, 3)
            print(f"{name:10} {key:40} {old:12.5g} {new:12.5g} {ratios[key]:8.3f}", flush=True)
    return ratios


if __name__ == "__main__":
    main()
