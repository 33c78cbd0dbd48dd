from hypothesis import given
from hypothesis import strategies as st

from etude.engine.prefill import PADDING, SMALL, TOKENS_AT_ONCE, group_by_length


@given(st.lists(st.integers(1, 600), max_size=80))
def test_every_tail_is_in_one_group_and_padding_is_bounded(lengths):
    groups = group_by_length(lengths)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        members = [lengths[i] for i in group]
        padded = max(members) * len(members)
        assert len(group) == 1 or padded <= TOKENS_AT_ONCE
        assert max(members) <= SMALL or padded - sum(members) <= PADDING * padded


def test_equal_tails_are_one_group():
    assert group_by_length([30] * 10) == [list(range(10))]
