"""Which part of a repository is read: whole lines, no more than the budget, from places that the seed decides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.bench.repository import SourceFile, joined_text, stretches

FILES = st.lists(st.text("aü\n", min_size=1, max_size=60).map(lambda text: text + "\n"), min_size=1, max_size=9).map(
    lambda texts: [SourceFile(f"f{n}.py", text) for n, text in enumerate(texts)]
)


@given(FILES, st.integers(80, 700), st.integers(0, 9))
def test_stretches_are_whole_lines_within_the_budget(files: list[SourceFile], budget: int, seed: int) -> None:
    found, whole = stretches(files, budget, seed), joined_text(files)
    assert found == stretches(files, budget, seed)
    if sum(file.size for file in files) <= budget:
        assert found == [whole]
        return
    for text in found:
        assert text in whole
        assert text.startswith("# f"), "a stretch begins with a file"
        assert text.endswith("\n")
        assert len(text.encode()) <= max(budget / len(found), text.find("\n") + 1)


def test_another_seed_begins_elsewhere() -> None:
    files = [SourceFile(f"f{n}.py", f"{n}\n" * 50) for n in range(100)]
    assert len({stretches(files, 400, seed)[0] for seed in range(5)}) > 1
    assert all(len(stretches(files, 400, seed)) == 4 for seed in range(5))
