from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.harness.context.output_limit import cut_end, cut_middle
from etude.harness.editing.diff import unified_diff
from etude.tasks.diff import apply_diff


def words(text: str) -> int:
    return len(text.split())


lines = st.lists(st.text(alphabet="ab \t", max_size=12), max_size=40)


@given(lines=lines, limit=st.integers(0, 30))
def test_what_is_cut_fits_and_keeps_whole_lines(lines, limit):
    for cut in (cut_end, cut_middle):
        text = cut(lines, limit, words, lambda n: f"<{n}>", "<cut>")
        assert words(text) <= limit
        if words("\n".join(lines)) <= limit:
            assert text == "\n".join(lines)


def test_the_middle_is_cut_from_command_output_and_the_end_from_files():
    numbers = [str(n) for n in range(20)]
    assert cut_end(numbers, 5, words, lambda n: f"<{n}>", "").split() == ["0", "1", "2", "3", "<16>"]
    assert cut_middle(numbers, 5, words, lambda n: f"<{n}>", "").split() == ["0", "1", "<16>", "18", "19"]


def test_a_single_line_that_is_too_long_is_cut_inside():
    assert cut_end(["x" * 100], 20, len, lambda n: f"<{n}>", "<cut>") == "x" * 14 + "\n<cut>"


text = st.text(alphabet=st.sampled_from("ab\n\r\t é\x0c\u2028"), max_size=30)
trees = st.dictionaries(st.sampled_from(["a", "b/c", "b/d.py"]), text, max_size=3)


@given(before=trees, after=trees)
def test_the_grader_reads_our_diffs(before, after):
    diff = unified_diff({p: t.encode() for p, t in before.items()}, {p: t.encode() for p, t in after.items()})
    # Empty files that come or go have no lines to show; a grader that needs them asks for more than a diff.
    shown = {p: t for p, t in apply_diff(before, diff).items() if t}
    assert shown == {p: t for p, t in after.items() if t}


def test_what_is_no_text_or_no_source_stays_out_of_diffs():
    assert unified_diff({"a": b"\0"}, {"a": b"\0\1", "__pycache__/x.pyc": b"x", ".git/index": b"y"}) == ""
