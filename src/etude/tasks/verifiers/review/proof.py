"""Decides whether an example demonstrates a defect, by running it on the library without defects and on the library
with only this defect.

Examples are expressions in the restricted language (`language.py`), so their value depends on what the library does,
not on how it is written or where it is stored. Each example runs in two boxes with the library without defects, and in
one box with the defect. The first two runs must give the same literal value or exception, and the third run must give
another.

An example that calls everything would demonstrate every defect without locating any. So each finding needs an example
of its own, with at most three names of the library. One of these must be the defective function or a name that leads to
it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from etude.tasks.change import Change
from etude.tasks.verdict import Verdict
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.example_runs import run_examples
from etude.tasks.verifiers.language import module_name, names_in, own_names, problems
from etude.tasks.verifiers.review.findings import Finding
from etude.tasks.verifiers.review.reachable_names import names_leading_to
from etude.tasks.verifiers.review.score import Defect

LONGEST = 400
MOST_NAMED = 3
"""Maximum number of the reviewed library's names that the example of one finding may use."""
_MOST_TRIED = 3
"""Maximum number of findings per defect whose examples are run. Further findings at this defect count as unproven."""
_ENV = {"PYTHONHASHSEED": "0"}
"""Environment variables that fix the order of sets, so that this order does not affect an example's value."""


async def unproven_findings(
    context: GradingContext,
    findings: Sequence[Finding],
    defects: Sequence[Defect],
    slack: int,
    fixed: Mapping[str, str],
) -> set[tuple[int, int]] | Verdict:
    """Return the index pairs (finding, defect) where the finding is at the defect, give or take `slack` lines, but its
    example does not demonstrate the defect. Return a verdict if the examples cannot be run. `fixed` are the library's
    files without any defect."""
    library = names_of(fixed)
    asked: dict[int, list[int]] = {}
    wrong: set[tuple[int, int]] = set()
    forms = ["".join(finding.example.split()) for finding in findings]
    repeated = {place for place, form in enumerate(forms) if form in forms[:place]}
    code = {path: data.decode() for path, data in context.pristine.files.items() if path in defects[0].files}
    for number, defect in enumerate(defects):
        leading = names_leading_to(code, defect.path, defect.first, defect.last)
        at = [place for place, finding in enumerate(findings) if defect.is_at(finding, slack)]
        good = [
            place
            for place in at
            if place not in repeated and not problem_of_example(findings[place].example, library, leading)
        ]
        asked[number] = good[:_MOST_TRIED]
        wrong.update((number, place) for place in at if place not in asked[number])
    places = sorted({place for group in asked.values() for place in group})
    twice = []
    for _ in range(2 if places else 0):
        answers = await _answers(context, [findings[place].example for place in places], library, fixed)
        if isinstance(answers, Verdict):
            return answers
        twice.append(dict(zip(places, answers, strict=True)))
    for number, group in asked.items():
        answers = await _answers(context, [findings[place].example for place in group], library, defects[number].files)
        if isinstance(answers, Verdict):
            return answers
        for place, answer in zip(group, answers, strict=True):
            one, other = (by_place[place] for by_place in twice)
            if not one or one != other or answer == one:
                wrong.add((number, place))
    return {(place, number) for number, place in wrong}


def names_of(files: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the public names of each module: those it defines, and those from the library's other modules."""
    library = {}
    for path, source in files.items():
        if path.endswith(".py"):
            top = path.split("/")[0].removesuffix(".py")
            taken = {
                alias.asname or alias.name
                for node in ast.parse(source).body
                if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == top)
                for alias in node.names
            }
            library[module_name(path)] = own_names(source) | frozenset(taken)
    return library


def problem_of_example(
    example: str, library: Mapping[str, frozenset[str]], leading: frozenset[str] = frozenset()
) -> str:
    """Return why an example is invalid, or "". An example must use a name in `leading`, unless that is empty."""
    if not example or len(example) > LONGEST:
        return "no example" if not example else f"longer than {LONGEST} letters"
    try:
        named = names_in(ast.parse(example, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"no expression: {error}"
    if len(named & frozenset[str]().union(*library.values())) > MOST_NAMED:
        return f"names more than {MOST_NAMED} things of the library"
    if leading and not named & leading:
        return f"names none of {', '.join(sorted(leading))}"
    found = problems(f"{_imports(library)}\n{example}", library)
    return found[0] if found else ""


def _imports(library: Mapping[str, frozenset[str]]) -> str:
    """Return import statements for the library's packages and its modules' public names, which an example may use
    without importing them."""
    tops = sorted(name for name in library if "." not in name)
    lines = [f"import {name}" for name in tops]
    lines += [f"from {name} import {', '.join(sorted(library[name]))}" for name in sorted(library) if library[name]]
    return "\n".join(lines)


async def _answers(
    context: GradingContext, examples: Sequence[str], library: Mapping[str, frozenset[str]], files: Mapping[str, str]
) -> list[str] | Verdict:
    """Run the examples on the library, with the files in `files` placed over it. Return one text per example: the repr
    of its literal value, or the exception that it raises, or an empty string for anything else."""
    if not examples:
        return []
    start = {"source": _imports(library), "mode": "exec"}
    steps = [[start, {"source": example, "mode": "single"}] for example in examples]
    runs = [{"module": "", "instead": None, "steps": pair} for pair in steps]
    change = Change({path: text.encode() for path, text in files.items()})
    answers = await run_examples(context, runs, change, _ENV)
    return answers if isinstance(answers, Verdict) else [_answer(outcomes) for outcomes in answers]


def _answer(outcomes: list[object]) -> str:
    last = outcomes[-1] if len(outcomes) == 2 else None
    if not isinstance(last, dict):
        return ""
    if raised := last.get("raised"):
        return f"raises {str(raised).partition(':')[0].strip()}"
    try:
        # Only literals count: the repr of other objects contains their address, which differs between boxes.
        return repr(ast.literal_eval(str(last.get("printed")).strip() or "None"))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ""
