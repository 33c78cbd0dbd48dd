"""The verifier of tasks in which the agent writes documentation (`type = "documentation"`).

The code must be unchanged, and all examples must give the output they state. For every public name, some example must
demonstrate what the function does: the example must fail when the function is replaced by one that returns something
else. The box runs the pristine library and gets no expected output; the comparison is made outside. The outcomes can be
trusted because examples are written in a restricted language (`language.py`).
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
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.documentation.claims import docstring_problems
from etude.tasks.verifiers.documentation.examples import Group, of_docstring, of_text
from etude.tasks.verifiers.documentation.interface import Public, public_of, without_docstrings
from etude.tasks.verifiers.example_runs import run_examples
from etude.tasks.verifiers.language import module_name, own_names, problems

REPLACEMENTS = ("none", "object", "spoilt")
"""Kinds of functions that replace a function in trial runs of its examples, by what they return: None; an object that
is equal to nothing; another value of the right type."""
MOST_STEPS = 400


@dataclass(slots=True)
class _Documentation:
    public: list[Public] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    library: dict[str, frozenset[str]] = field(default_factory=dict)
    """The public names that each module defines, by module."""


@dataclass(frozen=True, slots=True)
class _Run:
    group: Group
    replacement: tuple[str, str, str] | None = None
    """Module, name and kind (one of `REPLACEMENTS`) of a function to replace; None for the pristine library."""


class NotDocumentation(Exception):
    """A change that does more than document the library, or examples that are not allowed. The message says why."""


class DocumentationVerifier:
    sealed = True

    def __init__(self, task: Task) -> None:
        """Create the verifier. `task` is ignored, since verifiers of this type have no settings."""

    def protects(self, path: str) -> bool:
        return is_protected(path) or not path.endswith((".py", ".md"))

    async def examine(self, context: GradingContext) -> Verdict:
        started = time.monotonic()
        touched = context.change.touched
        try:
            documents = self._read(context)
        except NotDocumentation as error:
            return Verdict(Judgement.FAIL, str(error), Evidence(touched_protected=touched))
        runs = _runs(documents)
        # The box has the pristine library. It needs only the examples of the change, which are sent in the job.
        outcomes = await run_examples(context, [_job_of(run) for run in runs], Change())
        if isinstance(outcomes, Verdict):
            return outcomes
        wrong = [
            f"{run.group.where}: {step.source.strip()}"
            for run, found in zip(runs, outcomes, strict=True)
            if run.replacement is None
            for step, outcome in zip(run.group.steps, _padded(found, len(run.group.steps)), strict=True)
            if not step.matches(outcome)
        ]
        problems_by_name = {public.name: _problems_of(public, documents, runs, outcomes) for public in documents.public}
        bad = [f"{name}: {problem}" for name, found in problems_by_name.items() for problem in found]
        good = sum(not found for found in problems_by_name.values())
        evidence = Evidence(
            tests_expected=len(problems_by_name),
            tests_passed=good,
            failed_tests=tuple(wrong + bad),
            touched_protected=touched,
            seconds=time.monotonic() - started,
            withheld=sum(len(run.group.steps) for run in runs),
            score=good / len(problems_by_name) if problems_by_name else 0.0,
        )
        if wrong:
            return Verdict(Judgement.FAIL, f"{len(wrong)} examples do not hold: {wrong[0]}", evidence)
        if bad or not problems_by_name:
            reason = f"{good} of {len(problems_by_name)} names are documented" + (f"; {bad[0]}" if bad else "")
            return Verdict(Judgement.FAIL, reason, evidence)
        return Verdict(Judgement.PASS, f"all {good} names are documented", evidence)

    def _read(self, context: GradingContext) -> _Documentation:
        found = _Documentation()
        files = {path: data for path, data in context.pristine.files.items() if not self.protects(path)}
        for path, data in sorted({**files, **context.change.files}.items()):
            before = files.get(path)
            if path.endswith(".md"):
                found.groups += _parsed(of_text, path, (data or b"").decode("utf-8", "replace"))
            elif data is None or before is None:
                raise NotDocumentation(f"{path}: a change to the documentation may not add or remove this file")
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
            raise NotDocumentation(f"the examples have more than {MOST_STEPS} steps")
        for group in found.groups:
            if refused := problems(group.source, found.library, group.where):
                raise NotDocumentation(f"examples may not contain this: {refused[0]}")
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
        raise NotDocumentation(f"{path}: it cannot be parsed any more: {error}") from error
    if not same:
        raise NotDocumentation(f"{path}: the code itself was changed, not only its docstrings")


def _runs(documents: _Documentation) -> list[_Run]:
    """Return the runs to make: each group of examples once as it is, and once for each replacement of each public name
    that it calls."""
    runs = [_Run(group) for group in documents.groups]
    for public in documents.public:
        callers = [group for group in documents.groups if group.calls(public.short_name)]
        runs += [_Run(group, (public.module, public.name, which)) for group in callers for which in REPLACEMENTS]
    return runs


def _job_of(run: _Run) -> Mapping[str, object]:
    """Return a run as a JSON object for `run_examples.py`, the program that runs the examples in the box."""
    steps = [{"source": step.source, "mode": step.mode} for step in run.group.steps]
    return {"module": run.group.module, "instead": run.replacement, "steps": steps}


def _problems_of(
    public: Public, documents: _Documentation, runs: Sequence[_Run], outcomes: Sequence[list[object]]
) -> list[str]:
    shown = [group.exceptions for group in documents.groups if group.calls(public.short_name)]
    found = list(docstring_problems(public, frozenset().union(*shown)))
    if not shown:
        return [*found, "no example calls it"]
    for which in REPLACEMENTS:
        replacement = (public.module, public.name, which)
        pairs = [
            (run.group, outcome) for run, outcome in zip(runs, outcomes, strict=True) if run.replacement == replacement
        ]
        if all(_all_hold(group, outcome) for group, outcome in pairs):
            return [*found, "its examples hold even if it returns another value"]
    return found


def _all_hold(group: Group, outcome: list[object]) -> bool:
    padded = _padded(outcome, len(group.steps))
    return all(step.matches(one) for step, one in zip(group.steps, padded, strict=True))


def _padded(found: list[object], count: int) -> list[object]:
    """Return a run's outcomes as a list of `count` items, one for each step of its examples. Steps that were not
    reached, because the run was killed, have None."""
    return [*found, *[None] * count][:count]
