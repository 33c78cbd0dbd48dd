"""The verifier of tasks in which the agent writes documentation (`type = "documentation"`).

The code must stay what it was. All examples must hold; of every public name one must show what it does: it no longer
holds when the function answers something else. The box runs the true library and is told no expectation; what it
prints is compared here. Examples are believed because of what they are written in (`language.py`).
"""

from __future__ import annotations

import ast
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

from etude.sandbox.contract import Limits
from etude.tasks.change import Change
from etude.tasks.surface import is_protected
from etude.tasks.task import Task
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.documentation.claims import wrong_with
from etude.tasks.verifiers.documentation.examples import Group, of_docstring, of_text
from etude.tasks.verifiers.documentation.interface import Public, public_of, without_docstrings
from etude.tasks.verifiers.language import module_name, own_names, problems
from etude.tasks.verifiers.tests.starvation import Watch

RUNNER = (resources.files("etude.tasks.box") / "run_examples.py").read_text(encoding="utf-8")
REPORT = "etude-examples "
INSTEAD = ("none", "object", "spoilt")
"""What a replaced function answers: nothing; something that is equal to nothing; another value of the right type."""
SECONDS = 2
"""CPU time of the steps that share their names."""
MOST_STEPS = 400
LIMITS = Limits(memory_mb=256, processes=16, cpu_seconds=60, disk_mb=16, output_bytes=8_000_000)


@dataclass(slots=True)
class _Documents:
    public: list[Public] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    library: dict[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Run:
    group: Group
    instead: tuple[str, str, str] | None = None


class NotDocumentation(Exception):
    """The change is not documentation of this library; the message says why."""


class DocumentationVerifier:
    sealed = True

    def __init__(self, task: Task) -> None:
        """It has no settings."""

    def protects(self, path: str) -> bool:
        return is_protected(path) or not path.endswith((".py", ".md"))

    async def examine(self, stand: Stand) -> Verdict:
        started = time.monotonic()
        touched = stand.change.touched
        try:
            documents = self._read(stand)
        except NotDocumentation as error:
            return Verdict(Judgement.FAIL, str(error), Evidence(touched_protected=touched))
        runs = _runs(documents)
        outcomes = await _outcomes(stand, runs)
        if isinstance(outcomes, Verdict):
            return outcomes
        wrong = [
            f"{run.group.where}: {step.source.strip()}"
            for run, found in zip(runs, outcomes, strict=True)
            if run.instead is None
            for step, outcome in zip(run.group.steps, _padded(found, len(run.group.steps)), strict=True)
            if not step.holds(outcome)
        ]
        lacking = {public.name: _lacking(public, documents, runs, outcomes) for public in documents.public}
        bad = [f"{name}: {problem}" for name, found in lacking.items() for problem in found]
        good = sum(not found for found in lacking.values())
        evidence = Evidence(
            tests_expected=len(lacking),
            tests_passed=good,
            failed_tests=tuple(wrong + bad),
            touched_protected=touched,
            seconds=time.monotonic() - started,
            withheld=sum(len(run.group.steps) for run in runs),
            score=good / len(lacking) if lacking else 0.0,
        )
        if wrong:
            return Verdict(Judgement.FAIL, f"{len(wrong)} examples do not hold: {wrong[0]}", evidence)
        if bad or not lacking:
            reason = f"{good} of {len(lacking)} names are documented" + (f"; {bad[0]}" if bad else "")
            return Verdict(Judgement.FAIL, reason, evidence)
        return Verdict(Judgement.PASS, f"all {good} names are documented", evidence)

    def _read(self, stand: Stand) -> _Documents:
        found = _Documents()
        files = {path: data for path, data in stand.pristine.files.items() if not self.protects(path)}
        for path, data in sorted({**files, **stand.change.files}.items()):
            before = files.get(path)
            if path.endswith(".md"):
                found.groups += _parsed(of_text, path, (data or b"").decode("utf-8", "replace"))
            elif data is None or before is None:
                raise NotDocumentation(f"{path}: documentation neither adds nor removes code")
            else:
                _require_same_code(path, before, data)
                module = module_name(path)
                source = data.decode("utf-8", "replace")
                found.library[module] = own_names(source)
                public = public_of(module, source)
                found.public += public
                for one in public:
                    found.groups += _parsed(of_docstring, f"{path}: {one.name}", module, one.docstring)
                found.groups += _parsed(of_docstring, path, module, ast.get_docstring(ast.parse(source)) or "")
        if sum(len(group.steps) for group in found.groups) > MOST_STEPS:
            raise NotDocumentation(f"there are more than {MOST_STEPS} steps in examples")
        for group in found.groups:
            if refused := problems(group.source, found.library, group.where):
                raise NotDocumentation(f"examples may not say this: {refused[0]}")
        return found


def _parsed(read: Callable[..., list[Group]], *arguments: str) -> list[Group]:
    try:
        return read(*arguments)
    except ValueError as error:
        raise NotDocumentation(str(error)) from error


def _require_same_code(path: str, before: bytes, after: bytes) -> None:
    try:
        same = without_docstrings(before.decode()) == without_docstrings(after.decode())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotDocumentation(f"{path}: it can no longer be read: {error}") from error
    if not same:
        raise NotDocumentation(f"{path}: the code itself was changed, not only its docstrings")


def _runs(documents: _Documents) -> list[_Run]:
    """All examples on the true library; those that call a function also where it answers always the same."""
    runs = [_Run(group) for group in documents.groups]
    for public in documents.public:
        callers = [group for group in documents.groups if group.calls(public.called)]
        runs += [_Run(group, (public.module, public.name, which)) for group in callers for which in INSTEAD]
    return runs


async def _outcomes(stand: Stand, runs: Sequence[_Run]) -> list[list[object]] | Verdict:
    """What came of every step of every run, or the verdict where there is nothing to read."""
    nonce = secrets.token_hex(16)
    wall = stand.task.limits.verifier_seconds
    job = {"workdir": stand.pristine.workdir, "seconds": SECONDS, "runs": [_told(run) for run in runs]}
    data = json.dumps(job).encode()
    # The library is the true one: nothing of the change is needed in the box but its examples.
    async with stand.box(LIMITS, Change()) as box:
        with Watch() as watch:
            done = await box.exec(
                ["python3", "-s", "-B", "-c", RUNNER],
                timeout=wall,
                cwd="/",
                stdin=b"%08d" % len(data) + data + nonce.encode(),
                user=stand.user,
            )
        starved = done.timed_out and watch.starved((await box.stats()).cpu_seconds)
    if done.limit:
        if starved:
            return Verdict(Judgement.ERROR, "the wall clock expired on a host that gave the examples no time")
        return Verdict(Judgement.FAIL, f"the examples ran into the limit of {done.limit}")
    lines = done.stdout.decode("utf-8", "replace").split("\n")
    reports = [line.removeprefix(REPORT) for line in lines if line.startswith(REPORT)]
    if len(reports) != 1:
        log = done.stderr[-2000:].decode("utf-8", "replace")
        return Verdict(Judgement.ERROR, f"the examples were not run (exit code {done.code})", Evidence(log=log))
    try:
        report = json.loads(reports[0])
        found: list[list[object]] = report["runs"]
        if report["nonce"] != nonce or len(found) != len(runs):
            raise ValueError("not the report of this run")
    except (ValueError, KeyError, TypeError) as error:
        return Verdict(Judgement.SUSPECT, f"the report was tampered with: {error}")
    return found


def _told(run: _Run) -> Mapping[str, object]:
    steps = [{"source": step.source, "mode": step.mode} for step in run.group.steps]
    return {"module": run.group.module, "instead": run.instead, "steps": steps}


def _lacking(
    public: Public, documents: _Documents, runs: Sequence[_Run], outcomes: Sequence[list[object]]
) -> list[str]:
    shown = [group.exceptions for group in documents.groups if group.calls(public.called)]
    found = list(wrong_with(public, frozenset().union(*shown)))
    if not shown:
        return [*found, "no example calls it"]
    for which in INSTEAD:
        instead = (public.module, public.name, which)
        pairs = [(run.group, outcome) for run, outcome in zip(runs, outcomes, strict=True) if run.instead == instead]
        if all(_all_hold(group, outcome) for group, outcome in pairs):
            return [*found, "its examples hold though it answers something else"]
    return found


def _all_hold(group: Group, outcome: list[object]) -> bool:
    padded = _padded(outcome, len(group.steps))
    return all(step.holds(one) for step, one in zip(group.steps, padded, strict=True))


def _padded(found: list[object], count: int) -> list[object]:
    """A run that was ended has reported fewer steps."""
    return [*found, *[None] * count][:count]
