"""Does an example show a defect? It is run where the library is sound, and where it has this one defect alone.

Examples are expressions in the language of tests that agents write: what they come to depends on what the library does,
not on how it is written or where it lies. Each must come to the same plain value, or exception, in two boxes of the
sound library, and to another one with the defect. One that calls all there is shows every defect without anybody having
found it: so each finding has an example of its own, that names little, and the function in which the defect is, or what
leads there.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from etude.tasks.change import Change
from etude.tasks.verdict import Verdict
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.example_runs import run_examples
from etude.tasks.verifiers.language import module_name, own_names, problems
from etude.tasks.verifiers.review.findings import Finding
from etude.tasks.verifiers.review.leading import names_in, names_leading_to
from etude.tasks.verifiers.review.score import Defect

LONGEST = 400
MOST_NAMED = 3
"""Names of the library in one example."""
_MOST_TRIED = 3
"""Examples of one defect; a second finding at the same place does no more than a first."""
_ENV = {"PYTHONHASHSEED": "0"}
"""The order of a set says nothing."""


async def unproven(
    stand: Stand, findings: Sequence[Finding], defects: Sequence[Defect], slack: int, sound: Mapping[str, str]
) -> set[tuple[int, int]] | Verdict:
    """Findings at defects that they do not show, by the numbers of both."""
    library = names_of(sound)
    asked: dict[int, list[int]] = {}
    wrong: set[tuple[int, int]] = set()
    repeated = _repeated([finding.example for finding in findings])
    code = {path: data.decode() for path, data in stand.pristine.files.items() if path in defects[0].files}
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
        told = await _answers(stand, [findings[place].example for place in places], library, sound)
        if isinstance(told, Verdict):
            return told
        twice.append(dict(zip(places, told, strict=True)))
    for number, group in asked.items():
        told = await _answers(stand, [findings[place].example for place in group], library, defects[number].files)
        if isinstance(told, Verdict):
            return told
        for place, answer in zip(group, told, strict=True):
            one, other = (answers[place] for answers in twice)
            if not one or one != other or answer == one:
                wrong.add((number, place))
    return {(place, number) for number, place in wrong}


def names_of(files: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """The public names of each module of a library: its own, and what it passes on of its neighbours."""
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
    """Why it is none, if it is none; `leading` to the place of what it shows, as far as that has a name."""
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


def _repeated(examples: Sequence[str]) -> set[int]:
    """Those that were there before, however they are spaced."""
    seen: set[str] = set()
    found = set()
    for place, example in enumerate(examples):
        form = "".join(example.split())
        if form in seen:
            found.add(place)
        seen.add(form)
    return found


def _imports(library: Mapping[str, frozenset[str]]) -> str:
    """What an example may name without saying whence: the packages, and what they hold."""
    tops = sorted(name for name in library if "." not in name)
    lines = [f"import {name}" for name in tops]
    lines += [f"from {name} import {', '.join(sorted(library[name]))}" for name in sorted(library) if library[name]]
    return "\n".join(lines)


async def _answers(
    stand: Stand, examples: Sequence[str], library: Mapping[str, frozenset[str]], files: Mapping[str, str]
) -> list[str] | Verdict:
    """What each example comes to: a plain value or the name of an exception; empty where it comes to neither."""
    if not examples:
        return []
    start = {"source": _imports(library), "mode": "exec"}
    steps = [[start, {"source": example, "mode": "single"}] for example in examples]
    runs = [{"module": "", "instead": None, "steps": pair} for pair in steps]
    change = Change({path: text.encode() for path, text in files.items()})
    told = await run_examples(stand, runs, change, _ENV)
    return told if isinstance(told, Verdict) else [_answer(outcomes) for outcomes in told]


def _answer(outcomes: list[object]) -> str:
    last = outcomes[-1] if len(outcomes) == 2 else None
    if not isinstance(last, dict):
        return ""
    if raised := last.get("raised"):
        return f"raises {str(raised).partition(':')[0].strip()}"
    try:
        # Objects say where they lie, which is another place in each box.
        return repr(ast.literal_eval(str(last.get("printed")).strip() or "None"))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ""
