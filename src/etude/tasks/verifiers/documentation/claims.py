"""Parses what a docstring states about parameters, results and exceptions, and finds what is missing or wrong.

There are two styles: sections (`Args:`, `Returns:`, `Raises:`) and fields (`:param x:`, `:returns:`, `:raises X:`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from etude.tasks.verifiers.documentation.interface import Public

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises):\s*(.*)")
_ENTRY = re.compile(r"\*{0,2}(\w[\w.]*)\s*(?:\([^)]*\))?:\s*(.*)")
_FIELD = re.compile(r":(param|arg|returns?|yields?|raises?)((?:\s+[^\s:]+)*)\s*:\s*(.*)")
"""Matches a field such as `:param int x: text`. The last word before the second colon is the parameter's name."""
_DEFAULT = re.compile(
    r"\bdefaults?(?:\s+to|\s+is|\s*[:=])?\s+`*(\"[^\"]*\"|'[^']*'|-?\d+(?:\.\d+)?|None|True|False|\(\)|\[\]|\{\})"
)
_FEWEST_WORDS = 3


@dataclass(slots=True)
class Claims:
    summary: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    returns: str = ""
    raises: dict[str, str] = field(default_factory=dict)


def claims_of(docstring: str) -> Claims:
    lines = docstring.splitlines()
    claims = Claims(summary=lines[0].strip() if lines else "")
    section, depth = "", 0
    last: tuple[dict[str, str], str] | None = None
    for line in lines[1:]:
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if found := _FIELD.match(text):
            section, last = "", _take_field(claims, found[1], found[2].split(), found[3])
        elif (found := _SECTION.fullmatch(text)) and indent == 0:
            section, depth, last = found[1], 0, None
            if section in ("Returns", "Yields"):
                claims.returns = found[2]
        elif not text or text.startswith(">>>"):
            last = None
        elif section in ("Returns", "Yields") and indent:
            claims.returns += f" {text}"
        elif section and indent and (not depth or indent <= depth) and (found := _ENTRY.fullmatch(text)):
            depth = indent
            into = claims.raises if section == "Raises" else claims.parameters
            into[found[1]] = found[2]
            last = (into, found[1])
        elif last is not None and indent:
            last[0][last[1]] += f" {text}"
        elif not indent:
            section = ""
    claims.returns = claims.returns.strip()
    return claims


def _take_field(claims: Claims, kind: str, words: list[str], text: str) -> tuple[dict[str, str], str] | None:
    if kind.startswith(("return", "yield")):
        claims.returns = text
    if kind.startswith(("return", "yield")) or not words:
        return None
    into = claims.raises if kind.startswith("raise") else claims.parameters
    name = words[-1].lstrip("*")
    into[name] = text
    return into, name


def docstring_problems(public: Public, shown: frozenset[str]) -> Iterator[str]:
    """Yield what is missing or wrong in the docstring of a public name. `shown` are the exceptions that examples of
    this name demonstrate."""
    claims = claims_of(public.docstring)
    if not public.docstring:
        yield "has no docstring"
        return
    words = re.findall(r"\w+", claims.summary)
    if len(words) < _FEWEST_WORDS or set(map(str.lower, words)) <= set(public.short_name.lower().split("_")):
        yield "the docstring's first line does not describe it"
    yield from _wrong_parameters(public, claims)
    if public.returns_value and not claims.returns:
        yield "the docstring does not say what it returns"
    if claims.returns and not public.returns_value:
        yield "the docstring describes a result, but nothing is returned"
    documented = {name.rpartition(".")[2] for name in claims.raises}
    yield from (f"the docstring does not say that it raises {name}" for name in sorted(public.raises - documented))
    yield from (f"it does not raise {name}" for name in sorted(documented - public.may_raise - shown))


def _wrong_parameters(public: Public, claims: Claims) -> Iterator[str]:
    yield from (f"there is no parameter {name}" for name in claims.parameters if name not in public.parameters)
    for name in public.parameters:
        text = claims.parameters.get(name, "")
        if not text:
            yield f"the docstring does not describe the parameter {name}"
            continue
        found = _DEFAULT.search(text)
        default = public.defaults.get(name)
        if found is None:
            if default is not None:
                yield f"the docstring does not give the default of {name}"
        elif default is None or not _same(found[1], default):
            yield f"the default of {name} is {default or 'none'}, not {found[1]}"


def _same(documented: str, written: str) -> bool:
    try:
        return bool(ast.literal_eval(documented) == ast.literal_eval(written))
    except (ValueError, SyntaxError):
        return documented == written
