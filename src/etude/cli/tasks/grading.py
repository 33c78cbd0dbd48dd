"""etude tasks grade: grades a change, the reference or an untouched workspace, once or several times."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from etude.cli.errors import FAILED
from etude.cli.tasks.find_tasks import named_of_every_split, one_task, opened_grader
from etude.cli.tasks.wording import verdict_line
from etude.cli.wording import table
from etude.journal import ProgressLine, write_atomically
from etude.tasks import TaskError, Verdict
from etude.tasks.formats.swebench import grade_predictions, read_predictions
from etude.tasks.verifiers.harbor import grade_steps, reference_of

_MOST = 6
"""Maximum number of tests or files that a line of the verdict names."""


def grade_command(
    path: Path, diffs: list[Path], solution: bool, nothing: bool, times: int, as_json: bool, egress: str, store: Path
) -> int:
    if bool(diffs) + solution + nothing != 1:
        raise TaskError("expected one of --diff FILE, --solution and --nothing: what is to be graded?")
    task = one_task(path)
    given = [""] if nothing else [_read(diff) for diff in diffs]

    async def grade() -> list[Verdict]:
        async with opened_grader(store, egress) as grader:
            changes = given or await reference_of(task, grader.environments)
            verdicts: list[Verdict] = []
            with ProgressLine("grade", times, unit="runs") if times > 1 else nullcontext() as line:
                while len(verdicts) < times:
                    verdicts.append(await grade_steps(grader, task, changes, fresh=True))
                    if line:
                        line.update(len(verdicts))
            return verdicts

    verdicts = asyncio.run(grade())
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))
    else:
        _print(verdicts)
    return 0 if all(verdict.passed for verdict in verdicts) else FAILED


def grade_predictions_command(
    folder: Path, predictions: Path, report: Path | None, as_json: bool, egress: str, store: Path
) -> int:
    tasks, given = named_of_every_split([folder]), read_predictions(predictions)
    evidence = (report or predictions).with_suffix(".graded.jsonl")

    async def grade() -> dict[str, Any]:
        async with opened_grader(store, egress) as grader:
            with ProgressLine("grade", len(given), unit="predictions") as line:
                return await grade_predictions(
                    tasks, given, grader, evidence, on_progress=lambda done, _: line.update(done)
                )

    found = asyncio.run(grade())
    text = json.dumps(found, indent=2) + "\n"
    if report:
        write_atomically(report, text.encode())
    if as_json:
        print(text, end="")
    else:
        names = ("resolved", "unresolved", "suspect", "error", "empty_patch", "submitted", "sealed", "open")
        counts = [(name.replace("_", " "), str(found[f"{name}_instances"])) for name in names]
        print(table([*counts, ("of all tasks", str(found["total_instances"]))]))
    return FAILED if found["error_instances"] else 0


def _read(path: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return data.decode()
    except OSError as error:
        raise TaskError(f"{path}: expected a diff: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: expected a diff of text files, found bytes that are not UTF-8") from error


def _print(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        print(verdict_line(verdict))
    last = next((verdict for verdict in verdicts if not verdict.passed), verdicts[-1])
    evidence = last.evidence
    facts = {
        "score": "" if evidence.score is None else f"{evidence.score:g}",
        "exit code": "" if evidence.exit_code is None else str(evidence.exit_code),
        "tests": f"{evidence.tests_passed} of {evidence.tests_expected}" if evidence.tests_expected else "",
        "failed": _some(evidence.failed_tests),
        "controls": f"{evidence.controls}, none passed" if evidence.controls and not evidence.controls_passed else "",
        "passed controls": _some(evidence.controls_passed),
        "reset": _some(evidence.touched_protected),
    }
    for name, value in facts.items():
        if value:
            print(f"  {name:<15} {value}")
    if evidence.log.strip() and not last.passed:
        print("  log")
        print("\n".join(f"    {line}" for line in evidence.log.strip().splitlines()[-15:]))
    if len(verdicts) > 1:
        passed = sum(verdict.passed for verdict in verdicts)
        seconds = median(verdict.evidence.seconds for verdict in verdicts)
        print(f"{passed} of {len(verdicts)} passed, {seconds:.2f} s each (median)")


def _some(names: Sequence[str]) -> str:
    left_out = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {left_out} more" if left_out > 0 else "")
