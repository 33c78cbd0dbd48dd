"""The registry of verifiers, which grade changes to tasks. It maps the `type` in a task's [metadata.etude.verifier]
table to a verifier class; each verifier has its own file or package."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from etude.tasks.task import Task, TaskError
from etude.tasks.verifiers.contract import GradingContext, ProvingVerifier, Verifier

_VERIFIERS: dict[str, Callable[[Task], Verifier]] = {
    # Imported by name, so that a verifier is loaded only when it is used.
    "cases": lambda task: import_module("etude.tasks.verifiers.cases").CasesVerifier(task),
    "eval-script": lambda task: import_module("etude.tasks.verifiers.swebench").EvalScriptVerifier(task),
    "harbor": lambda task: import_module("etude.tasks.verifiers.harbor").HarborVerifier(task),
    "swebench": lambda task: import_module("etude.tasks.verifiers.swebench").SwebenchVerifier(task),
    "documentation": lambda task: import_module("etude.tasks.verifiers.documentation").DocumentationVerifier(task),
    "mutation": lambda task: import_module("etude.tasks.verifiers.mutation").MutationVerifier(task),
    "refactor": lambda task: import_module("etude.tasks.verifiers.refactor").RefactorVerifier(task),
    "migration": lambda task: import_module("etude.tasks.verifiers.migration").MigrationVerifier(task),
    "review": lambda task: import_module("etude.tasks.verifiers.review").ReviewVerifier(task),
    "script": lambda task: import_module("etude.tasks.verifiers.script").ScriptVerifier(task),
    "dockerfile": lambda task: import_module("etude.tasks.verifiers.script").ImageVerifier(task),
    "workflow": lambda task: import_module("etude.tasks.verifiers.script").WorkflowVerifier(task),
    "tests": lambda task: import_module("etude.tasks.verifiers.tests").TestsVerifier(task),
}


def register_verifier(name: str, make: Callable[[Task], Verifier]) -> None:
    """Make a verifier available as the `type` of a task. Raises ValueError if the name is taken."""
    if name in _VERIFIERS:
        raise ValueError(f"there is a verifier {name!r} already")
    _VERIFIERS[name] = make


def open_verifier(task: Task) -> Verifier:
    """Create the task's verifier. Raises TaskError if its name is unknown or its files are malformed."""
    name = verifier_name(task)
    if name not in _VERIFIERS:
        place = f"{task.directory / 'task.toml'}: metadata.etude.verifier.type"
        raise TaskError(f"{place}: expected one of {', '.join(sorted(_VERIFIERS))}, found {name!r}")
    return _VERIFIERS[name](task)


def verifier_name(task: Task) -> str:
    """Return the name of the task's verifier, from its settings or else from its files; empty if both fail."""
    if declared := task.verifier.get("type"):
        return str(declared)
    if (task.directory / "tests/cases.json").is_file():
        return "cases"
    foreign = "etude" not in task.config.get("metadata", {}) or task.config.get("steps")
    return "harbor" if foreign or (task.directory / "tests/test.sh").is_file() else ""


__all__ = ["GradingContext", "ProvingVerifier", "Verifier", "open_verifier", "register_verifier", "verifier_name"]
