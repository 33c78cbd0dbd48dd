"""Values of JSON that programs rarely expect."""

from __future__ import annotations

import json

from hypothesis import strategies as st

NUMBERS = st.integers(-2, 12) | st.sampled_from(
    [1 << 31, 1 << 63, -(1 << 63), 10**400, 0.5, float("inf"), float("nan")]
)
TEXTS = st.sampled_from(
    [
        *(
            "",
            "a",
            "b c",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a\0b",
            "\n",
            "é\u2028",
            "a" * 300,
            "\ud800",
            "\udcff",
            "0",
            "-1",
        )
    ]
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
_FLAT = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXTS, SCALARS, max_size=2)
VALUES = SCALARS | st.lists(_FLAT, max_size=2) | st.dictionaries(TEXTS, _FLAT, max_size=2)


def mostly(usual: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """The usual value eight times of nine, else any."""
    return st.integers(0, 8).flatmap(lambda chance: usual if chance else VALUES)


def record(fields: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[dict[str, object]]:
    """An object with these fields, each mostly as usual and sometimes missing."""
    some = {name: mostly(usual) for name, usual in fields.items()}
    usual, full, part = (
        st.fixed_dictionaries(fields),
        st.fixed_dictionaries(some),
        st.fixed_dictionaries({}, optional=some),
    )
    return st.sampled_from([usual, usual, full, full, part]).flatmap(lambda chosen: chosen)


def written(value: object) -> bytes:
    return json.dumps(value).encode()
