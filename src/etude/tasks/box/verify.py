"""Runs a task's cases without Étude: tests/test.sh runs it, and it writes the reward file that Harbor reads.

Étude's own grader does not use this script: it runs run_cases.py in the box and compares the results outside of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 8
"""Shorter than the task's own timeout, so that code that never ends still gets a reward of 0."""


def main(workdir: str, reward_file: str) -> int:
    cases = json.loads((HERE / "cases.json").read_text())["cases"]
    calls = [{key: case[key] for key in ("id", "module", "function", "arguments")} for case in cases]
    job = json.dumps({"workdir": workdir, "cpu_seconds": 5, "cases": calls}).encode()
    nonce = secrets.token_hex(16)
    command = [sys.executable, "-I", "-S", "-B", str(HERE / "run_cases.py")]
    code, output = 1, b""
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            input=b"%08d" % len(job) + job + nonce.encode(),
            stdout=subprocess.PIPE,
            check=False,
            timeout=SECONDS,
        )
        code, output = done.returncode, done.stdout
    marker = "etude-report "
    reports = [line[len(marker) :] for line in output.decode().split("\n") if line.startswith(marker)]
    rows, said = [], ""
    if len(reports) == 1:
        report = json.loads(reports[0])
        rows, said = report["rows"], report["nonce"]
    found = {identity: outcome.get("value") for identity, outcome in rows}
    passed = sum(found.get(case["id"]) == case["expected"] for case in cases)
    solved = code == 0 and said == nonce and passed == len(cases) == len(rows)
    reward = pathlib.Path(reward_file)
    reward.parent.mkdir(parents=True, exist_ok=True)
    reward.write_text("1\n" if solved else "0\n")
    sys.stdout.write(f"{passed} of {len(cases)} cases passed\n")
    return 0 if solved else 1


if __name__ == "__main__":
    sys.exit(main(os.environ.get("WORKDIR", "/work"), os.environ.get("REWARD_FILE", "/logs/verifier/reward.txt")))
