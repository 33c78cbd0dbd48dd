"""Fresh knowledge: questions with accepted answers, in a file that the user keeps, and the rule that judges answers.

The rule: the last line of the answer that has text counts, if it has at most 200 characters. It is right if an accepted
answer occurs in it as whole words; if `exact`, if it is one. Upper and lower case, white space, quotation marks,
backticks, asterisks and a full stop at the end do not matter. So `3.1` is neither in `3.11` nor in `3.1.4`.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.bench.asking import Prompt
from etude.bench.errors import BenchError
from etude.journal import write_atomically

LONGEST_LINE = 200
_BOUND = "a short answer of a few words, such as a name, a number or a path " * 2
SYSTEM = "You answer questions about software from memory."
_SHOWN = (
    ("Which keyword begins a function in Python?", "def"),
    ("In which file does npm record the exact versions that it installed?", "package-lock.json"),
)
"""Questions that show a base model how an answer looks."""
_FIELDS = {"question", "answers", "exact", "source"}


@dataclass(frozen=True, slots=True)
class Question:
    question: str
    answers: tuple[str, ...]
    exact: bool = False
    source: str = ""
    """Where the answer was looked up."""


def is_right(question: Question, answer: str) -> bool:
    line = next((line for line in reversed(answer.strip().splitlines()) if folded(line)), "")
    if len(line) > LONGEST_LINE:
        return False
    said = folded(line)
    accepted = [folded(one) for one in question.answers]
    if question.exact:
        return said in accepted
    return any(_occurs(one, said) for one in accepted)


def _occurs(one: str, said: str) -> bool:
    """Whether a text occurs as whole words: not beside a letter, digit or `_`, nor joined to one by `.`, `-` or `/`."""
    before, after = r"(?<!\w)(?<!\w[./-])", r"(?![./-]?\w)"
    return re.search(f"{before}{re.escape(one)}{after}", said) is not None


def folded(text: str) -> str:
    """Return a text without what the rule ignores."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"[\"'`*“”‘’«»]", "", text)
    return " ".join(text.split()).rstrip(".").strip()


def question_prompt(question: Question) -> Prompt:
    asked = " ".join(question.question.split())
    shown = "".join(f"Question: {one}\nAnswer: {answer}\n\n" for one, answer in _SHOWN)
    user = f"{asked}\n\nEnd with one line that holds nothing but the answer, as short as it can be."
    return Prompt(SYSTEM, user, f"{shown}Question: {asked}\nAnswer:", max(_BOUND, *question.answers, key=len))


def first_line(answer: str) -> str:
    """Return what a base model answered, before it goes on with questions of its own."""
    return answer.strip().split("\n", 1)[0]


def chosen(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """Return at most `count` questions, in the order of the file."""
    places = range(len(questions))
    kept = sorted(random.Random(f"questions:{seed}").sample(places, min(count, len(questions))))
    return [questions[place] for place in kept]


def read_questions(path: Path) -> list[Question]:
    """Read a file of questions: .toml with [[question]] tables, or .jsonl. Raises BenchError."""
    if path.suffix not in (".toml", ".jsonl"):
        raise BenchError(f"{path}: expected a file of questions, .toml or .jsonl")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    found = [_question(f"{path}, {place}", values) for place, values in _tables(path, text)]
    if not found:
        raise BenchError(f'{path} has no questions: expected [[question]] tables with "question" and "answers"')
    return found


def _tables(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    yield f"line {number}", json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise BenchError(f"{path}, line {number} is not JSON: {error}") from error
        return
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BenchError(f"{path} is not TOML: {error}") from error
    if unknown := sorted(values.keys() - {"question"}):
        raise BenchError(f"{path} has {unknown[0]!r}: expected only [[question]] tables")
    tables = values.get("question", [])
    if not isinstance(tables, list):
        raise BenchError(f"{path}: expected [[question]] tables, with two brackets")
    yield from ((f"question {number}", table) for number, table in enumerate(tables, start=1))


def _question(place: str, values: Any) -> Question:
    if not isinstance(values, dict):
        raise BenchError(f"{place}: expected a table with question and answers")
    if unknown := sorted(values.keys() - _FIELDS):
        raise BenchError(f"{place} has {unknown[0]!r}: expected {', '.join(sorted(_FIELDS))}")
    question, answers = values.get("question"), values.get("answers")
    if not isinstance(question, str) or not question.strip():
        raise BenchError(f"{place} has no question, which must be a text")
    if not isinstance(answers, list) or not answers or not all(isinstance(one, str) and folded(one) for one in answers):
        raise BenchError(f"{place} has no answers: expected a list of accepted answers, each a text of some letters")
    exact, source = values.get("exact", False), values.get("source", "")
    if not isinstance(exact, bool) or not isinstance(source, str):
        raise BenchError(f"{place}: expected true or false for exact, and a text for source")
    return Question(question, tuple(answers), exact, source)


def write_questions(path: Path, questions: Iterable[Question], heading: str) -> None:
    """Write a .toml file of questions that `read_questions` reads back."""
    parts = ["".join(f"# {line}\n" for line in heading.splitlines())]
    for one in questions:
        lines = ["[[question]]", f"question = {_quoted(one.question)}"]
        lines.append(f"answers = [{', '.join(map(_quoted, one.answers))}]")
        lines += ["exact = true"] if one.exact else []
        lines += [f"source = {_quoted(one.source)}"] if one.source else []
        parts.append("\n".join(lines) + "\n")
    write_atomically(path, "\n".join(parts).encode())


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML."""
    sound = text.encode("utf-8", "replace").decode()
    escaped = json.dumps(sound, ensure_ascii=False)
    return "".join(f"\\u{ord(sign):04x}" if sign == "\x7f" else sign for sign in escaped)
