from __future__ import annotations

import pytest
from tests.contract.sandbox.support import in_loop

from etude.harness.workspaces.result_cache import Memo


@in_loop
async def test_what_may_not_be_kept_is_given_to_nobody_else_and_errors_reach_only_their_caller():
    memo: Memo[str, int] = Memo(10)
    answers = iter([(1, False), (2, True), (3, True)])

    async def compute() -> tuple[int, bool]:
        return next(answers)

    async def fail() -> tuple[int, bool]:
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        await memo.get("k", fail)
    assert [await memo.get("k", compute) for _ in range(3)] == [1, 2, 2]


@in_loop
async def test_the_oldest_goes_first():
    memo: Memo[int, int] = Memo(2)

    async def put(key: int) -> int:
        async def compute() -> tuple[int, bool]:
            return key, True

        return await memo.get(key, compute)

    for key in (1, 2, 1, 3, 1, 2):
        await put(key)
    # 1 was used again before 3 came, so 2 went.
    assert (memo.stats.hits, memo.stats.misses) == (2, 4)
