"""Runs a hidden test suite without Étude: tests/test.sh runs it, and it writes the reward file that Harbor reads.

The suite runs unchanged in the same box as the code under test, which could read it. Étude's own grader withholds
expected values from the box and does not use this script.
"""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all the rest
    from typing import Any

HERE = pathlib.Path(__file__).resolve().parent


def outcomes_of(job: dict[str, Any], workdir: str, place: str) -> tuple[int, dict[str, str]]:
    nonce = secrets.token_hex(16)
    folders = {name: f"{place}/{name}" for name in ("HOME", "TMPDIR")}
    own = {"nonce": nonce, "workdir": workdir, "folders": list(folders.values()), "report": f"{place}/report.json"}
    data = json.dumps({**job["job"], **own}).encode()
    fixed = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1", "NODE_OPTIONS": ""}
    done = subprocess.run(
        [*job["command"], (HERE / job["script"]).read_text()],
        input=b"%08d" % len(data) + data,
        stdout=subprocess.PIPE,
        cwd="/",
        env={**os.environ, **folders, **fixed, **job["env"]},
        check=False,
    )
    lines = done.stdout.decode("utf-8", "replace").split("\n")
    rows = [json.loads(line[len(nonce) :]) for line in lines if line.startswith(nonce)]
    return done.returncode, {row["test"]: row["outcome"] for row in rows if "test" in row}


def main(workdir: str, reward_file: str) -> int:
    job = json.loads((HERE / "open.json").read_text())
    expected = json.loads((HERE / "expected.json").read_text())
    if (HERE / "files").is_dir():
        shutil.copytree(HERE / "files", workdir, dirs_exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        code, outcomes = outcomes_of(job, workdir, place)
    tests = expected["fail_to_pass"] + expected["pass_to_pass"]
    fine = {test: {"passed"} for test in tests}
    fine.update((test, {"passed", "skipped", "xfailed"}) for test in expected.get("may_skip", ()))
    failed = [test for test in tests if outcomes.get(test) not in fine[test]]
    solved = code == 0 and not failed
    reward = pathlib.Path(reward_file)
    reward.parent.mkdir(parents=True, exist_ok=True)
    reward.write_text("1\n" if solved else "0\n")
    sys.stdout.write("".join(f"failed: {test}\n" for test in failed))
    sys.stdout.write(f"{len(tests) - len(failed)} of {len(tests)} tests passed, exit code {code}\n")
    return 0 if solved else 1


if __name__ == "__main__":
    sys.exit(main(os.environ.get("WORKDIR", "/work"), os.environ.get("REWARD_FILE", "/logs/verifier/reward.txt")))
