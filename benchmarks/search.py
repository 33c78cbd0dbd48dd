"""Compares indexed search in the Linux kernel's source (over 60,000 files) with plain ripgrep, and measures how often a
description finds its function (_recall.py).

Forty patterns in four classes of selectivity are searched. Before each search a matching line is appended to some file
of the tree, so the measured time includes noticing changes; every file is restored at the end. Both sides start ripgrep
and read its whole output; ours also sorts it by file. `--cpu` compares CPU time, for a machine with other load.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _recall import recall
from _report import finish

from etude.harness.search import Found, Grep, Pattern

PATTERNS = Path(__file__).with_name("_search_patterns.toml")
SELECTIVE = ("rare literal", "rare regex")
RUNS = 3

Clock = Callable[[], float]


@dataclass(frozen=True)
class Case:
    kind: str
    pattern: Pattern
    says: str


@dataclass(frozen=True)
class Measured:
    case: Case
    ours: float
    alone: float
    equal: bool
    lines: int

    @property
    def ratio(self) -> float:
        return self.alone / self.ours


def cases() -> list[Case]:
    found = tomllib.loads(PATTERNS.read_text(encoding="utf-8"))["pattern"]
    return [
        Case(each.pop("class"), Pattern(text=each.pop("text"), **each), says)
        for each in found
        for says in [each.pop("says")]
    ]


def ripgrep_alone(grep: Grep, pattern: Pattern) -> bytes:
    """Run ripgrep as a user would, in its fastest form, with the output format that our search uses."""
    command = [grep.ripgrep.program, "--no-config", "--line-number", "--heading", "--null", "--color=never"]
    command += ["--fixed-strings"] * pattern.fixed + ["--word-regexp"] * pattern.word
    command += ["--ignore-case"] * pattern.ignore_case + [f"--regexp={pattern.text}", "./"]
    return subprocess.run(command, cwd=grep.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False).stdout


def measure(grep: Grep, case: Case, edit: Callable[[str], None], clock: Clock, runs: int) -> Measured:
    taken: tuple[list[float], list[float]] = ([], [])
    equal, lines = True, 0
    for _ in range(runs):
        edit(case.says)
        begun = clock()
        found = grep.search(case.pattern, seconds=600)
        taken[0].append(clock() - begun)
        begun = clock()
        printed = ripgrep_alone(grep, case.pattern)
        taken[1].append(clock() - begun)
        equal = equal and printed_again(found) == sorted(printed.removesuffix(b"\n").split(b"\n\n"))
        lines = sum(block.count(b"\n") + 1 for _, block in found.files)
    return Measured(case, statistics.median(taken[0]), statistics.median(taken[1]), equal, lines)


def version_of(grep: Grep) -> str:
    said = subprocess.run([grep.ripgrep.program, "--version"], capture_output=True, text=True, check=True).stdout
    return " ".join(said.split()[:2])


def printed_again(found: Found) -> list[bytes]:
    return sorted(b"./%b\0%b" % each for each in found.files)


@contextmanager
def edits(root: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that appends a line to a random .c file; all files are restored at the end."""
    choice = random.Random(0)
    files = sorted(path for path in root.rglob("*.c") if path.is_file())
    before: dict[Path, bytes] = {}

    def edit(says: str) -> None:
        path = choice.choice(files)
        before.setdefault(path, path.read_bytes())
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{says}\n")

    try:
        yield edit
    finally:
        for path, data in before.items():
            path.write_bytes(data)


def linux_tree(cache: Path) -> Path:
    """Return the unpacked source of Debian's package linux-source-*: from an earlier run if there is one, else from the
    installed package, else from the newest package that apt can download."""
    found = sorted(path for path in cache.glob("linux-source-*") if path.is_dir())
    if found:
        return found[-1]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".unpacking-") as name:
        place = Path(name)
        installed = sorted(Path("/usr/src").glob("linux-source-*.tar.xz"))
        archive = installed[-1] if installed else downloaded(place)
        print(f"unpacking {archive.name} into {cache}", flush=True)
        subprocess.run(["tar", "-xJf", archive, "-C", place], check=True)
        return (place / archive.name.removesuffix(".tar.xz")).rename(cache / archive.name.removesuffix(".tar.xz"))


def downloaded(place: Path) -> Path:
    said = subprocess.run(["apt-cache", "depends", "linux-source"], capture_output=True, text=True, check=True).stdout
    package = next(line.split()[-1] for line in said.splitlines() if "Depends: linux-source-" in line)
    subprocess.run(["apt-get", "download", package], cwd=place, check=True, stdout=subprocess.DEVNULL)
    (deb,) = place.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", deb, place / "package"], check=True)
    (archive,) = (place / "package").glob("usr/src/*.tar.xz")
    return archive


def cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def grep_figures(tree: Path, cache: Path, clock: Clock, runs: int) -> dict[str, Any]:
    with Grep(tree, cache=cache) as grep, edits(tree) as edit:
        begun = clock()
        files = len(grep.build().paths)
        index_seconds = clock() - begun
        results = []
        for case in cases():
            each = measure(grep, case, edit, clock, runs)
            results.append(each)
            print(
                f"{each.case.kind:14} {each.case.pattern.text:50} {each.lines:8} lines  {1000 * each.ours:7.1f} ms"
                f"  alone {1000 * each.alone:7.1f} ms  x{each.ratio:.1f}{'' if each.equal else '  NOT EQUAL'}",
                flush=True,
            )
        return {
            "files": files,
            "equal": all(each.equal for each in results),
            "speedup_selective": min(each.ratio for each in results if each.case.kind in SELECTIVE),
            "speedup_median": statistics.median(each.ratio for each in results if each.case.kind in SELECTIVE),
            "slowdown_worst": max(1 / each.ratio for each in results if each.case.kind not in SELECTIVE),
            "index_seconds": index_seconds,
            "index_mib": grep.place.stat().st_size / 2**20,
            "peer": version_of(grep),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, help="search this folder instead of the kernel's source")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude" / "bench",
        help="folder where the kernel's source is unpacked (1.4 GB) and kept for the next run; it comes from "
        "/usr/src/linux-source-*.tar.xz, or else from Debian's package, which apt-get downloads (140 MB)",
    )
    parser.add_argument("--cpu", action="store_true", help="measure CPU time of this process and of ripgrep")
    parser.add_argument("--runs", type=int, default=RUNS, help="searches per pattern; the median counts (default 3)")
    given = parser.parse_args()
    clock: Clock = cpu_seconds if given.cpu else time.perf_counter
    with tempfile.TemporaryDirectory(prefix="etude-bench-") as place:
        found = grep_figures(given.tree or linux_tree(given.cache), Path(place), clock, given.runs)
    finish("search", {**found, **recall(), "clock": "cpu" if given.cpu else "wall", "runs": given.runs})


if __name__ == "__main__":
    os.environ.pop("RIPGREP_CONFIG_PATH", None)
    main()
