"""Finds names in a JavaScript test that stand for literals: `const name = literal`, and the columns of a table in `for
(const [a, b] of [[1, 2], ...])`, if the loop visits every row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from etude.tasks.verifiers.tests.javascript_tokens import Token, arguments_of, value_of
from etude.tasks.verifiers.tests.site import ByteSpan, Edit

_MAY_SKIP_ROWS = frozenset((b"if", b"break", b"continue", b"return", b"switch", b"while", b"try", b"throw"))


@dataclass(frozen=True, slots=True)
class Column:
    """A name in a JavaScript test that stands for one literal, or for one literal per iteration of a loop."""

    name: bytes
    values: tuple[object, ...]
    """The literals' values: one, or one per iteration of the name's loop, in order."""
    blanks: tuple[Edit, ...]
    """Edits of the source that put null in place of each literal that this JavaScript name stands for."""
    first: int
    """Index of the first token that can use the name, after its own definition. `last` is the index after the last."""
    last: int

    def has_no_other_use(self, tokens: Sequence[Token], reported: Sequence[tuple[ByteSpan, ByteSpan]]) -> bool:
        """Return whether withholding the values removes every use of the name. `reported` are the assertions that
        expect these values, as (statement, compared expression). The statement is removed, except for its compared
        expression."""
        return all(
            any(_in(token, statement) and not _in(token, compared) for statement, compared in reported)
            for token in tokens[self.first : self.last]
            if token.text == self.name or (token.kind == "template" and self.name in token.text)
        )


def columns(tokens: Sequence[Token], closing: dict[int, int], start: int, end: int) -> list[Column]:
    """Return the names that stand for literals, if their definitions begin between the tokens `start` and `end`."""
    return [
        column
        for place in range(start, end - 3)
        for column in [*_constant(tokens, closing, place, end), *_loop(tokens, closing, place)]
    ]


def _constant(tokens: Sequence[Token], closing: dict[int, int], place: int, end: int) -> Iterator[Column]:
    word, name, equals, first = tokens[place : place + 4]
    if (word.text, name.kind, equals.text) != (b"const", "word", b"="):
        return
    last = closing.get(place + 3, place + 3 + (first.text == b"-"))
    if last + 1 < end and tokens[last + 1].text == b";" and (values := _values([list(tokens[place + 3 : last + 1])])):
        blank = ((first.start, tokens[last].end), b"null")
        yield Column(name.text, values, (blank,), last + 1, end)


def _loop(tokens: Sequence[Token], closing: dict[int, int], place: int) -> Iterator[Column]:
    opening = [token.text for token in tokens[place : place + 4]]
    if opening != [b"for", b"(", b"const", b"["]:
        return
    close, body = closing[place + 3], closing[place + 1] + 1
    if tokens[close + 1].text != b"of" or body not in closing or tokens[body].text != b"{":
        return
    if any(token.text in _MAY_SKIP_ROWS for token in tokens[body : closing[body]]):
        return
    table = _table(tokens, closing, close + 2)
    if table is None or (table == close + 2 and closing[table] + 1 != body - 1):
        return
    rows = _rows(tokens, closing, table)
    for at, name in enumerate(arguments_of(tokens, closing, place + 3)):
        cells = [row[at] for row in rows if at < len(row) and row[at]]
        if len(name) == 1 and len(cells) == len(rows) and (values := _values(cells)):
            blanks = tuple(((cell[0].start, cell[-1].end), b"null") for cell in cells)
            yield Column(name[0].text, values, blanks, body, closing[body])


def _table(tokens: Sequence[Token], closing: dict[int, int], place: int) -> int | None:
    """Return the index of the bracket that opens the table of a loop. At `place`, after the loop's `of`, is either this
    bracket or the name of a constant that is used nowhere else. Return None for any other expression."""
    if tokens[place].text == b"[":
        return place
    uses = [at for at, token in enumerate(tokens) if token.text == tokens[place].text]
    if len(uses) != 2 or not uses[0] or uses[1] != place or tokens[place + 1].text != b")":
        return None
    word, _, equals, opening = [token.text for token in tokens[uses[0] - 1 : uses[0] + 3]]
    if (word, equals, opening) != (b"const", b"=", b"["):
        return None
    return uses[0] + 2 if tokens[closing[uses[0] + 2] + 1].text == b";" else None


def _rows(tokens: Sequence[Token], closing: dict[int, int], table: int) -> list[list[list[Token]]]:
    """Return each cell's tokens, row by row, or an empty list if any row is not an array literal."""
    found, place = [], table + 1
    while place < closing[table]:
        if tokens[place].text == b",":
            place += 1
        elif tokens[place].text == b"[":
            found.append(arguments_of(tokens, closing, place))
            place = closing[place] + 1
        else:
            return []
    return found


def _values(cells: Sequence[list[Token]]) -> tuple[object, ...]:
    """Return the values of the literals in these table cells, or an empty tuple if any cell is not a literal."""
    try:
        read = [value_of(cell) for cell in cells]
    except (ValueError, IndexError):
        return ()
    return tuple(value for value, _ in read) if not any(rest for _, rest in read) else ()


def _in(token: Token, span: ByteSpan) -> bool:
    return span[0] <= token.start and token.end <= span[1]
