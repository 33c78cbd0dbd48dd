"""Documentation tasks: the agent writes the docstrings of a small library from which they were removed."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence

from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.libraries import NAMES, Library, draw_library, public_functions

_README = "README.md"


class DocumentationSource(CategorySource):
    name = "documentation"
    category = "documentation"

    def kins(self) -> Sequence[str]:
        return NAMES

    def draft(self, kin: str, rng: random.Random) -> Draft:
        library = draw_library(kin, rng)
        readme = f"# {library.module}\n".encode()
        before = {library.path: _with_docstrings(library.source, {}).encode(), _README: readme}
        in_readme, readme_text = _examples_moved(library)
        return Draft(
            instruction=_instruction(library, rng),
            kind="docstrings",
            verifier={"type": "documentation"},
            before=before,
            solved=before | {library.path: library.source.encode()},
            other={library.path: in_readme.encode(), _README: readme + readme_text.encode()},
        )


def _examples_moved(library: Library) -> tuple[str, str]:
    """Move the examples from the docstrings to the README. Return the changed source and the text to append to the
    README."""
    texts, blocks = {}, []
    for function in public_functions(ast.parse(library.source)):
        text, mark, example = (ast.get_docstring(function) or "").partition(">>> ")
        texts[function.name] = text.rstrip()
        lines = (mark + example).rstrip()
        blocks.append(f"\n```python\n>>> from {library.module} import {function.name}\n{lines}\n```\n")
    return _with_docstrings(library.source, texts), "".join(blocks)


def _with_docstrings(source: str, texts: dict[str, str]) -> str:
    """Replace the docstrings of the public functions by `texts`, keyed by function name. A function without a text gets
    no docstring."""
    lines = source.splitlines(keepends=True)
    for function in reversed(public_functions(ast.parse(source))):
        first = function.body[0]
        text = texts.get(function.name, "")
        shown = [f"    {line}\n" if line else "\n" for line in f'"""{text}\n"""'.split("\n")] if text else []
        lines[first.lineno - 1 : first.end_lineno] = shown
    return "".join(lines)


def _instruction(library: Library, rng: random.Random) -> str:
    ask = rng.choice(
        (
            f"Document the public functions of {library.path}.",
            f"{library.path} has no docstrings: write them.",
            f"Write the documentation of {library.module}: a docstring for every public function.",
        )
    )
    return (
        f"{ask} Say what each does, its parameters (with defaults), what it returns and which exceptions it raises, in "
        "sections Args, Returns and Raises, and show each in an example (>>>) here or in README.md. Do not change the "
        "code."
    )
