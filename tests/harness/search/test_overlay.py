"""Files held in memory are found as if they lay where they belong."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.search.trees import (
    FILES,
    GLOBS,
    IN_MEMORY,
    NAMES,
    PATTERNS,
    RIPGREP,
    RULE_FILES,
    TEXTS,
    outcome,
    write,
)

from etude.harness.search import Grep, Pattern


@settings(max_examples=12, deadline=None)
@given(
    FILES,
    RULE_FILES,
    RULE_FILES,
    st.dictionaries(st.sampled_from([*NAMES, "sub/deep/new.c", "fresh/n.c"]), st.none() | TEXTS, max_size=4),
    st.lists(PATTERNS, min_size=1, max_size=3),
    GLOBS,
    st.sampled_from(["", ".git", "../.git", "sub/.git"]),
)
def test_what_is_held_in_memory_is_found_as_if_it_were_written(
    files, rules, above, changed, patterns, globs, repository
):
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        root = Path(place) / "above" / "tree"
        root.mkdir(parents=True)
        write(root.parent, above)
        write(root, {**files, **rules})
        if repository and (root / repository).parent.is_dir():
            (root / repository).mkdir()
        with Grep(root, cache=Path(place), least_files=0) as grep:
            grep.build()
            asked = [(pattern, how) for pattern in patterns for how in ([[], globs] if globs else [[]])]
            found = [outcome(grep.search, pattern, globs=how, changed=changed) for pattern, how in asked]
            write(root, {path: data for path, data in changed.items() if data is not None})
            for path in (path for path, data in changed.items() if data is None):
                (root / path).unlink(missing_ok=True)
            alone = [outcome(RIPGREP.search, os.fsencode(root), pattern, globs=how) for pattern, how in asked]
            assert found == alone


def test_rules_held_in_memory_hide_what_is_held_in_memory(tmp_path):
    write(tmp_path / "tree", {"a.c": b"probe\n"})
    with Grep(tmp_path / "tree", cache=tmp_path) as grep:
        changed = {".ignore": b"b.c\n", "b.c": b"probe\n", "c.c": b"probe\n"}
        assert [path for path, _ in grep.search(Pattern("probe"), changed=changed).files] == [b"a.c", b"c.c"]
