"""Feature tasks: a function, or one option of a function, is removed from a finished package, and the agent must add
it. The tests are hidden."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.packages import PYTHON, Package, kins, package_of, written_otherwise
from etude.tasks.categories.packages.harder_tests import Hidden, harder_tests
from etude.tasks.categories.variants import try_variants
from etude.tasks.verifiers.tests import suite_files


@dataclass(frozen=True, slots=True)
class Feature:
    kind: str
    request: str
    without: Mapping[str, bytes]
    """The package's files without the feature, by path."""
    tests: tuple[str, ...] = ()
    """Ids of the package's tests that fail without the feature."""


class FeaturesSource(CategorySource):
    name = "features"
    version = 3
    category = "features"

    def kins(self) -> Sequence[str]:
        return kins(*PYTHON)

    def draft(self, kin: str, rng: random.Random) -> Draft:
        package = package_of(kin)
        feature, hidden = _draw(kin, rng)
        rest = [test for test in package.ids if test not in feature.tests]
        return Draft(
            instruction=feature.request,
            kind=feature.kind,
            verifier={"type": "tests", "runner": package.runner, "seconds": 10.0, "memory_mb": 512},
            before=feature.without,
            solved=package.files,
            other=written_otherwise(package, rng),
            hidden=suite_files(hidden.tests, [*feature.tests, *hidden.ids], rest),
        )


@cache
def features_of(kin: str) -> list[Feature]:
    """Return the features that a task on the package `kin` can ask for. Removing such a feature makes at least one test
    fail that expects more than a usual default value or a part of its input (`Package.telling`)."""
    package = package_of(kin)
    found = [*_functions(package), *_options(package)]
    tried = try_variants({**package.files, **package.tests}, [feature.without for feature in found])
    return [
        Feature(feature.kind, feature.request, feature.without, outcome.failed)
        for feature, outcome in zip(found, tried, strict=True)
        if outcome is not None and package.telling.intersection(outcome.failed)
    ]


def _draw(kin: str, rng: random.Random) -> tuple[Feature, Hidden]:
    """Return a random feature of the package that `kin` names, and the hidden tests for it. Features are skipped if all
    answers that tests of them could expect can be guessed."""
    features = features_of(kin)
    for place in rng.sample(range(len(features)), len(features)):
        if (hidden := _hidden(kin, place)) is not None:
            return features[place], hidden
    raise AssertionError(f"no feature of {kin} has answers that are hard to guess")


@cache
def _hidden(kin: str, place: int) -> Hidden | None:
    feature = features_of(kin)[place]
    return harder_tests(package_of(kin), feature.tests, feature.without, f"{kin}/features/{place}")


def _functions(package: Package) -> Iterator[Feature]:
    """Yield a feature for each public function that the package's other code does not mention. The function is removed
    from the package, and the agent is asked to add it."""
    everything = b"\n".join(package.files[path] for path in package.modules).decode()
    init = f"{package.name}/__init__.py"
    for path, function in _public(package):
        if len(re.findall(rf"\b{function.name}\b", everything)) > 1:
            continue
        text = package.files[path].decode()
        segment = ast.get_source_segment(text, function) or ""
        without = {
            **package.files,
            path: text.replace(f"\n\n{segment}\n", "").encode(),
            init: _unexported(package.files[init].decode(), function.name).encode(),
        }
        signature = f"{function.name}({ast.unparse(function.args)})"
        explained = " ".join((ast.get_docstring(function) or "").split())
        request = f"Add `{signature}` to {path}, and export it from {package.name}. {explained}"
        yield Feature("function", request, without)


def _options(package: Package) -> Iterator[Feature]:
    """Yield a feature for each parameter with a default value, in each public function. The parameter is removed, so
    that the function always uses the default, and the agent is asked to add it."""
    for path, function in _public(package):
        names = function.args.args[len(function.args.args) - len(function.args.defaults) :]
        for argument, default in zip(names, function.args.defaults, strict=True):
            text = package.files[path].decode()
            segment, value = ast.get_source_segment(text, function) or "", ast.unparse(default)
            head, colon, body = segment.partition("):\n")
            docstring, end, code = body.partition('"""\n')
            head = head.replace(f", {argument.arg}={value}", "")
            code = re.sub(rf"\b{argument.arg}\b", value, code)
            changed = text.replace(segment, head + colon + docstring + end + code)
            request = (
                f"Give `{function.name}` in {path} an option `{argument.arg}`, {value} by default, so that it does "
                "what its docstring says."
            )
            yield Feature("option", request, {**package.files, path: changed.encode()})


def _public(package: Package) -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in package.modules:
        for node in ast.parse(package.files[path]).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield path, node


def _unexported(init: str, name: str) -> str:
    """Remove a name from the imports and `__all__` of an `__init__.py`, in any layout."""
    return re.sub(rf'    "{name}",\n|"{name}", |, "{name}"(?=\])|\b{name}, |, {name}$', "", init, flags=re.MULTILINE)
