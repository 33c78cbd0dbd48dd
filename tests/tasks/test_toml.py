from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks import toml

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = (
    text | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
    | st.dates() | st.times().map(lambda t: t.replace(fold=0)) | st.datetimes()
)  # fmt: skip
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))


@settings(max_examples=30)
@given(st.dictionaries(text, values, max_size=5))
def test_what_is_written_is_read_back(table: dict[str, object]) -> None:
    assert tomllib.loads(toml.dumps(table)) == table


def test_none_has_no_form() -> None:
    with pytest.raises(TypeError, match="None"):
        toml.dumps({"a": [None]})
