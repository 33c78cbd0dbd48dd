"""Calls of one turn at the same time: as if one after the other, and quicker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop

from etude.harness.parallel import CallScope, collide, run_in_call_order

PATHS = (".", "a", "a/x", "a/x/deep", "b", "ab")
REACHES = st.builds(CallScope, st.sampled_from(["none", "read", "write", "all"]), st.sampled_from(PATHS))


async def collected(
    scopes: Sequence[CallScope],
    carry_out: Callable[[int], Awaitable[Any]],
    ends: Callable[[Any], bool] = lambda result: False,
) -> list[Any]:
    return [result async for result in run_in_call_order(scopes, carry_out, ends)]


@given(REACHES, REACHES)
def test_to_collide_is_mutual_and_a_write_collides_with_what_it_may_touch(one: CallScope, other: CallScope) -> None:
    assert collide(one, other) == collide(other, one)
    if one.access == "write" and other.access in ("read", "write") and "." in (one.path, other.path):
        assert collide(one, other)


def test_names_that_begin_alike_are_no_folders_of_each_other() -> None:
    assert not collide(CallScope("write", "a"), CallScope("write", "ab"))
    assert collide(CallScope("write", "a/x"), CallScope("read", "a"))
    assert not collide(CallScope("read", "a"), CallScope("read", "a"))
    assert collide(CallScope("all"), CallScope("read", "a"))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(REACHES, st.integers(0, 3)), max_size=8), st.integers(0, 9))
def test_results_and_files_are_those_of_one_after_the_other(calls: list[tuple[CallScope, int]], end: int) -> None:
    """Files are the leaves of PATHS; a call that writes appends its place to each file that it scopes, after a while;
    one that reads says what it sees. The call at `end` ends the run."""
    leaves = [path for path in PATHS if path != "."]

    def touched(scope: CallScope) -> list[str]:
        if scope.access == "none":
            return []
        return [
            path
            for path in leaves
            if scope.access == "all" or collide(CallScope("write", path), CallScope("read", scope.path))
        ]

    async def run(at_once: bool) -> tuple[list[object], dict[str, list[int]]]:
        files: dict[str, list[int]] = {path: [] for path in leaves}

        async def carry_out(place: int) -> object:
            scope, pauses = calls[place]
            seen = {path: tuple(files[path]) for path in touched(scope)}
            for _ in range(pauses if at_once else 0):
                await asyncio.sleep(0)
            if scope.access in ("write", "all"):
                for path in touched(scope):
                    assert tuple(files[path]) == seen[path], "somebody else wrote meanwhile"
                    files[path].append(place)
            assert all(tuple(files[path])[: len(was)] == was for path, was in seen.items())
            return (place, seen)

        if at_once:
            return await collected([scope for scope, _ in calls], carry_out, lambda r: r[0] == end), files
        results = []
        for place in range(len(calls)):
            results.append(await carry_out(place))
            if place == end:
                break
        return results, files

    results, files = asyncio.run(run(at_once=True))
    expected, expected_files = asyncio.run(run(at_once=False))
    assert results == expected
    if end >= len(calls):
        assert files == expected_files


@in_loop
async def test_what_cannot_collide_runs_at_the_same_time() -> None:
    everybody = asyncio.Barrier(3)

    async def carry_out(place: int) -> int:
        async with asyncio.timeout(30):
            await everybody.wait()
        return place

    scopes = [CallScope("read", "a"), CallScope("write", "b"), CallScope("none")]
    assert await collected(scopes, carry_out) == [0, 1, 2]


@pytest.mark.parametrize("how", ["failure", "cancelled", "closed"])
@in_loop
async def test_nothing_runs_on_after_the_end(how: str) -> None:
    ended: list[int] = []

    async def carry_out(place: int) -> int:
        try:
            if place == 0 and how == "failure":
                await asyncio.sleep(0)
                raise RuntimeError("the box is gone")
            if place == 0 and how == "closed":
                return place
            await asyncio.sleep(60)
        finally:
            ended.append(place)
        return place

    work = asyncio.ensure_future(
        collected([CallScope("read")] * 3, carry_out, lambda place: how == "closed" and place == 0)
    )
    await asyncio.sleep(0.01)
    if how == "cancelled":
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    elif how == "failure":
        with pytest.raises(RuntimeError, match="the box"):
            await work
    else:
        assert await work == [0]
    assert sorted(ended) == [0, 1, 2]
    assert len(asyncio.all_tasks()) == 1
