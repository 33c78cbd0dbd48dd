import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etude.engine.builtin.prefix import PrefixTable

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(rows=st.lists(TOKENS, min_size=1, max_size=5), prompt=TOKENS, lookahead=st.integers(0, 1))
def test_the_longest_match_is_that_of_a_plain_search(rows, prompt, lookahead):
    table = PrefixTable(len(rows) + 1, 16, lookahead=lookahead)
    for row, tokens in enumerate(rows):
        table.begin(row, np.asarray(tokens, np.int32))
    unsettled = np.zeros(len(rows) + 1, np.bool_)
    match = table.longest(np.asarray(prompt, np.int32), unsettled=unsettled, worth=4)

    def reusable(tokens):
        common = next((i for i, (a, b) in enumerate(zip(tokens, prompt, strict=False)) if a != b), None)
        common = min(len(tokens), len(prompt)) if common is None else common
        return max(0, min(common - lookahead, len(tokens) - 1, len(prompt) - 1))

    assert match.reused == max(reusable(tokens) for tokens in rows)
    assert match.reused == 0 or reusable(rows[match.row]) == match.reused


def test_an_unsettled_row_has_to_be_worth_the_wait():
    table = PrefixTable(2, 16)
    table.begin(0, np.asarray([1, 2, 3, 4, 9], np.int32))
    table.begin(1, np.asarray([1, 2, 3, 4, 5, 6, 7], np.int32))
    prompt, unsettled = np.asarray([1, 2, 3, 4, 5, 6, 7, 8], np.int32), np.array([False, True])
    assert table.longest(prompt, unsettled=unsettled, worth=3).row == 0
    assert table.longest(prompt, unsettled=unsettled, worth=1).row == 1
