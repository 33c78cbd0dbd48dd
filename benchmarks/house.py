"""Size and structure of the code: lines, files, import cycles, words of documentation, duplicated lines.

    make bench NAME=house

An import cycle is a set of modules that import each other, directly or through others; imports under TYPE_CHECKING
count. A duplicate is a run of at least ten lines that occurs twice in `src`; blank lines, comments and imports are
ignored.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import grimp
import networkx
from _report import finish

ROOT = Path(__file__).resolve().parent.parent
RUN = 10
"""Shortest run of equal lines that counts as a duplicate."""


def lines_of(files: list[Path]) -> list[int]:
    return [len(file.read_text(encoding="utf-8").splitlines()) for file in files]


def cycles() -> list[list[str]]:
    """Return the import cycles, each as a sorted list of modules."""
    graph = grimp.build_graph("etude", cache_dir=None)
    arrows = networkx.DiGraph()
    for module in graph.modules:
        arrows.add_edges_from((module, other) for other in graph.find_modules_directly_imported_by(module))
    return [sorted(found) for found in networkx.strongly_connected_components(arrows) if len(found) > 1]


def duplicates(files: list[Path]) -> list[tuple[str, str]]:
    """Return pairs of places (file:line) where equal runs of lines begin; overlapping runs are merged into one."""
    seen: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for file in files:
        numbered = [
            (number, text)
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
            if (text := line.strip()) and not text.startswith(("#", "from ", "import "))
        ]
        for at in range(len(numbered) - RUN + 1):
            window = numbered[at : at + RUN]
            seen[tuple(text for _, text in window)].append((file, window[0][0]))
    found, last = [], (Path(), Path(), 0, 0)
    for places in seen.values():
        for (one, line), (other, elsewhere) in pairwise(places):
            if (one, other) != last[:2] or line > last[2] + 3 or elsewhere > last[3] + 3:
                found.append((f"{one.relative_to(ROOT)}:{line}", f"{other.relative_to(ROOT)}:{elsewhere}"))
            last = (one, other, line, elsewhere)
    return found


def main() -> None:
    source, tests = sorted((ROOT / "src").rglob("*.py")), sorted((ROOT / "tests").rglob("*.py"))
    pages = [*sorted((ROOT / "docs").glob("**/*.md")), ROOT / "README.md"]
    sizes, circles, twice = lines_of(source), cycles(), duplicates(source)
    for circle in circles:
        print("circle:", " ".join(circle))
    for one, other in twice:
        print("twice:", one, other)
    finish(
        "house",
        {
            "src_lines": sum(sizes),
            "test_lines": sum(lines_of(tests)),
            "files": len(sizes),
            "median_lines": int(statistics.median(sizes)),
            "p90_lines": int(statistics.quantiles(sizes, n=10)[-1]),
            "docs_words": sum(len(re.findall(r"\S+", page.read_text(encoding="utf-8"))) for page in pages),
            "cycles": len(circles),
            "duplicates": len(twice),
        },
    )


if __name__ == "__main__":
    main()
