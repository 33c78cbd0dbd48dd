"""The verifier of tasks in which the agent writes documentation (`type = "documentation"`).

The code must be unchanged and all examples must hold. For every public name, some example must demonstrate what it
does: the example must fail when the function is replaced by one that returns something else. The box runs the true
library and is given no expected output; its output is compared here. The outcomes can be believed because examples are
written in a restricted language (`language.py`).
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from etude.tasks.change import Change
from etude.tasks.protected_files import is_protected
from etude.tasks.task import Task
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.documentation.claims import wrong_with
from etude.tasks.verifiers.documentation.examples import Group, of_docstring, of_text
from etude.tasks.verifiers.documentation.interface import Public, public_of, without_docstrings
from etude.tasks.verifiers.example_runs import run_examples
from etude.tasks.verifiers.language import module_name, own_names, problems

INSTEAD = ("none", "object", "spoilt")
"""What a replaced function returns: None; an object equal to nothing; another value of the right type."""
MOST_STEPS = 400


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
        """Takes no settings from the task."""

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
        # The box has the pristine library: of the change it needs only the examples, which are sent as the job.
        outcomes = await run_examples(stand, [_told(run) for run in runs], Change())
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
    """Every group of examples on the true library; and for each public name, the groups that call it, with the
    function replaced."""
    runs = [_Run(group) for group in documents.groups]
    for public in documents.public:
        callers = [group for group in documents.groups if group.calls(public.called)]
        runs += [_Run(group, (public.module, public.name, which)) for group in callers for which in INSTEAD]
    return runs


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
    """Pad the outcomes with None for steps that were not reached because the run was killed."""
    return [*found, *[None] * count][:count]
