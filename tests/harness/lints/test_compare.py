"""What only moves is never new; what is added is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.harness.lints import Diagnostic, unmatched
from etude.harness.lints.compare import renamed

LINE = st.sampled_from(["", "a", "    a", "b", "x bad", "    x bad", "y bad", "z worse", "}"])
"""Few of them, so that equal lines are everywhere."""


def lint(files: dict[str, bytes]) -> list[Diagnostic]:
    """Finds what is bad, and says in which line."""
    found = []
    for path, data in files.items():
        for number, line in enumerate(data.decode().split("\n"), 1):
            for word in ("bad", "worse"):
                if word in line:
                    message = f"{line.strip()} at line {number}"
                    found.append(Diagnostic(path, number, line.index(word) + 1, "error", word, message, "mine"))
    return found


def new(before: list[str], after: list[str], *, path: str = "a", now: str = "a") -> list[Diagnostic]:
    old, files = {path: "\n".join(before).encode()}, {now: "\n".join(after).encode()}
    return unmatched(lint(old), lint(files), old, files)


def is_good(line: str) -> bool:
    return "bad" not in line and "worse" not in line


edits = st.lists(st.tuples(st.integers(0, 60), st.booleans(), LINE.filter(is_good)), max_size=8)


def edited(lines: list[str], changes: list[tuple[int, bool, str]]) -> list[str]:
    """With good lines put in or taken out."""
    lines = list(lines)
    for place, put, line in changes:
        at = place % (len(lines) + 1)
        if put:
            lines.insert(at, line)
        elif at < len(lines) and is_good(lines[at]):
            del lines[at]
    return lines


@given(st.lists(LINE, max_size=30), edits)
def test_lines_that_are_none_of_its_business_make_nothing_new(lines: list[str], changes) -> None:
    assert new(lines, edited(lines, changes)) == []


@given(
    st.lists(LINE, max_size=30), edits, st.integers(0, 60), st.sampled_from(["x bad", "y bad", "z worse", "new bad"])
)
def test_one_bad_line_more_is_exactly_one_new(lines: list[str], changes, place: int, bad: str) -> None:
    after = edited(lines, changes)
    after.insert(place % (len(after) + 1), bad)
    found = new(lines, after)
    assert len(found) == 1
    assert found[0].message.startswith(bad)


@given(st.lists(LINE, max_size=30), st.randoms())
def test_the_order_of_lines_does_not_matter(lines: list[str], random) -> None:
    shuffled = list(lines)
    random.shuffle(shuffled)
    assert new(lines, shuffled) == []


@given(st.lists(LINE, max_size=30), st.lists(LINE, max_size=30))
def test_never_fewer_new_ones_than_more_there_are(before: list[str], after: list[str]) -> None:
    found = new(before, after)
    more = sum(not is_good(line) for line in after) - sum(not is_good(line) for line in before)
    assert max(0, more) <= len(found) <= sum(not is_good(line) for line in after)
    assert set(found) <= set(lint({"a": "\n".join(after).encode()}))


def test_which_of_two_equal_ones_is_new() -> None:
    assert [problem.line for problem in new(["a", "x bad", "b"], ["x bad", "a", "x bad", "b"])] == [1]
    assert [problem.line for problem in new(["a", "x bad", "b"], ["a", "x bad", "b", "x bad"])] == [4]


def test_the_same_problem_in_a_line_that_was_rewritten_is_old() -> None:
    old, files = {"a": b"a\ncall(1)\nb"}, {"a": b"a\ncall(1, 2)\nb"}
    before = Diagnostic("a", 2, 1, "error", "E", "no such function", "mine")
    assert unmatched([before], [before], old, files) == []
    elsewhere = {"a": b"a\nb\nc\nd\ncall(3)\ne"}
    moved = Diagnostic("a", 5, 1, "error", "E", "no such function", "mine")
    assert unmatched([before], [moved], {"a": b"a\ncall(1)\nb\nc\nd\ne"}, elsewhere) == [moved]


def test_another_rule_or_message_or_linter_is_new() -> None:
    files = {"a": b"x"}
    before = Diagnostic("a", 1, 1, "error", "E", "defined on line 3, see b.py:3:5", "mine")
    assert (
        unmatched(
            [before], [Diagnostic("a", 1, 9, "error", "E", "defined on line 4, see b.py:4:9", "mine")], files, files
        )
        == []
    )
    for other in (
        Diagnostic("a", 1, 1, "error", "F", before.message, "mine"),
        Diagnostic("a", 1, 1, "error", "E", "defined on line 3, see c.py:3:5", "mine"),
        Diagnostic("a", 1, 1, "error", "E", before.message, "yours"),
    ):
        assert unmatched([before], [other], files, files) == [other]


def test_a_file_under_another_name_keeps_its_problems() -> None:
    body = ["one", "x bad", "two", "three"]
    assert new(body, body, path="old.py", now="pack/new.py") == []
    assert [problem.line for problem in new(body, ["y bad", *body], path="old.py", now="new.py")] == [1]
    assert len(new(body, ["x bad", "4", "5", "6", "7"], path="old.py", now="new.py")) == 1
    assert renamed({"a": b"1\n2", "b": b"1\n2"}, {"c": b"1\n2", "d": b"1\n3"}) == {"c": "a", "d": "b"}


def test_what_names_no_line_or_no_file_is_matched_by_its_words() -> None:
    problem = Diagnostic("nowhere/config", 0, 0, "error", "", "nothing to look at", "mine")
    assert unmatched([problem], [problem], {"a": b"1"}, {"a": b"2"}) == []
    assert unmatched([], [problem], {}, {}) == [problem]


def test_a_piece_too_large_to_compare_is_matched_by_text() -> None:
    before = [f"old {number}" for number in range(2_500)] + ["x bad"]
    after = ["x bad", *(f"new {number}" for number in range(2_500)), "end"]
    assert new(before, after) == []
