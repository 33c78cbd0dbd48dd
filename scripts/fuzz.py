"""Fuzz the parsers of what boxes, images and agents send, one target after another.

    fuzz.py [TARGET...] [--seconds 600] [--seed N] [--list]

Each target runs for so many seconds on one core. An input that breaks it is written to tests/fuzz/seeds/TARGET, from
where it is run first from then on, and the exit code is 1. Inputs that reached something new are kept in
.pytest_cache/fuzz, so that the next campaign goes on from them.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzz.campaign import keep_breaks, run_campaign  # noqa: E402
from tests.fuzz.targets import TARGETS  # noqa: E402
from tests.fuzz.worker import Progress  # noqa: E402

FOUND = ROOT / ".pytest_cache" / "fuzz"
_LINES_APART = 60.0
"""Seconds between the lines of progress where no terminal shows them."""


def row(name: str, progress: Progress, seconds: float) -> str:
    megabytes = progress.worst_bytes / (1 << 20)
    return (
        f"{name:<14} {progress.inputs:>9,} inputs  {progress.steps:>5} steps  {len(progress.outcomes):>4} outcomes  "
        f"worst {progress.worst_seconds:.3f} s, {megabytes:.1f} MiB  {len(progress.breaks)} broken  {seconds:>4.0f} s"
    )


def fuzz(name: str, seconds: float, seed: int) -> bool:
    """Run the campaign of one target and print its row. Return whether the target withstood it."""
    began = shown = time.monotonic()

    def say(progress: Progress) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            print(f"\r{row(name, progress, time.monotonic() - began)}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - shown > _LINES_APART:
            shown = time.monotonic()
            print(row(name, progress, shown - began), file=sys.stderr, flush=True)

    progress = run_campaign(TARGETS[name], seconds, seed, found=FOUND / name, say=say)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    print(row(name, progress, time.monotonic() - began), flush=True)
    for path, broken in zip(keep_breaks(TARGETS[name], progress), progress.breaks, strict=True):
        print(f"  {broken.kind}: {broken.what}\n    {path.relative_to(ROOT)}", flush=True)
    return not progress.breaks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all if none is named")
    parser.add_argument("--seconds", type=float, default=600, help="for each target")
    parser.add_argument("--seed", type=int, default=None, help="of the random inputs; another each time if not given")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    given = parser.parse_args()
    if given.list:
        print("\n".join(TARGETS))
        return 0
    if unknown := [name for name in given.targets if name not in TARGETS]:
        print(f"fuzz: no target {unknown[0]}; expected one of: {' '.join(TARGETS)}", file=sys.stderr)
        return 2
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    results = [fuzz(name, given.seconds, seed) for name in given.targets or TARGETS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
