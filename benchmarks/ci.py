"""Measures how long each check of `.ci/run` takes in a fresh clone of the last commit.

    make bench NAME=ci

Needs the network for `make setup`. A check that fails ends the benchmark and prints the check's last lines. The whole
output is in ci.log in the clone, whose folder is printed first and removed at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _report import finish

ROOT = Path(__file__).resolve().parent.parent
STEPS = {
    "setup_s": "setup",
    "tools_s": "tools",
    "lint_s": "lint",
    "test_s": "test",
    "full_s": "test-full",
    "times_s": "test-times SLACK=4",
    "smoke_s": "smoke",
}
DEBIAN = Path("/usr/bin/python3.11")


def main() -> None:
    # The clone must not find the packages of the environment that runs this.
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    if DEBIAN.exists():  # as .ci/run takes it
        environment["PYTHON"] = str(DEBIAN)
    with tempfile.TemporaryDirectory(prefix="etude-ci-") as folder:
        clone = Path(folder, "etude")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        print(f"in {clone}", file=sys.stderr)
        seconds: dict[str, float] = {}
        for key, target in STEPS.items():
            begun = time.monotonic()
            with (clone / "ci.log").open("a") as log:
                code = subprocess.call(["make", *target.split()], cwd=clone, env=environment, stdout=log, stderr=log)
            seconds[key] = time.monotonic() - begun
            print(f"make {target}: {seconds[key]:.0f} s", file=sys.stderr)
            if code:
                raise SystemExit("\n".join((clone / "ci.log").read_text().splitlines()[-30:]))
        finish("ci", {**seconds, "whole_s": sum(seconds.values())})


if __name__ == "__main__":
    main()
