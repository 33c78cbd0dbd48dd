"""A tokenizer trained on a little code and English, shared by the tests of this room."""

from __future__ import annotations

import pytest

from etude.text import Tokenizer

CODE = '''
"""Small functions on lists and numbers. It's enough, isn't it?"""


class Stack(Base):
    def __init__(self, *items, limit=10):
        self._items = list(items)  # kept in order

    def push_all(self, values: list[int], key=None) -> int:
        for index, value in enumerate(values[1:], start=1):
            if value not in self._items and (index % 2 == 0 or value >= -1):
                self._items.append(value + 2 * index - 1)
        return len(self._items)


def clamp(value, low, high):
    # Keep value between low and high.
    if value < low:
        return low
    return max(low, min(value, high))


def total_price(prices, rate=0.5):
    result = {"sum": 0, 'count': len(prices)}
    while prices:
        result["sum"] += prices.pop() * rate
    raise ValueError(f"cannot add {result} to the total")
'''

TRANSCRIPT = """
list
calc.py util.py
read calc.py
1 def add(a, b):
2     # Return the sum of a and b.
3     return a - b
shell python check.py
FAIL add(5, 1) gave 4, expected 6
FAIL clamp(5, 1, 3) gave 1, expected 3
edit calc.py 3 return a + b
ok, line 3 of calc.py is now: return a + b
The function returned the wrong value. Fixed the sign in line 3 and checked it again.
finish
"""


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([CODE, TRANSCRIPT], 1024)


@pytest.fixture(scope="session")
def small_tokenizer() -> Tokenizer:
    return Tokenizer.train([CODE, TRANSCRIPT], 400)


@pytest.fixture(scope="session")
def code() -> str:
    return CODE


@pytest.fixture(scope="session")
def transcript() -> str:
    return TRANSCRIPT
