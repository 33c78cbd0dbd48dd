"""Diffs of agents, and patches of other tools that are turned into them."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of

from etude.tasks.change import change_of
from etude.tasks.diff import Bounds, DiffError
from etude.tasks.formats.swebench.plain_patches import plain_diff, reversed_diff
from etude.tasks.protected_files import is_protected

_PRISTINE = {
    "a.py": b"one\ntwo\nthree\n",
    "pkg/b.py": "é\nlast line".encode(),
    "empty": b"",
    "binary": b"\xff\xfe",
    "tests/test_a.py": b"def test():\n    pass\n",
    "no\nname": b"x\n",
}
_LINKS, _FOLDERS = ("out", "pkg/link"), ("build",)
_BOUNDS = Bounds(diff_bytes=60_000, files=8, file_bytes=20_000, all_bytes=50_000)


def _run(data: bytes) -> str:
    diff = data.decode("utf-8", "surrogateescape")
    try:
        change = change_of(diff, _PRISTINE, is_protected, _BOUNDS, links=_LINKS, folders=_FOLDERS)
    except DiffError as error:
        return kind_of(error)
    assert len(change.files) <= _BOUNDS.files
    assert sum(len(found) for found in change.files.values() if found) <= _BOUNDS.all_bytes
    for path, found in change.files.items():
        steps = path.split("/")
        assert not {"", ".", "..", ".git"} & set(steps), "a path that leads elsewhere"
        assert not is_protected(path), "a protected file is changed"
        assert path not in (*_LINKS, *_FOLDERS, "binary")
        assert not any(path.startswith(f"{link}/") for link in _LINKS)
        assert found is None or len(found) <= _BOUNDS.file_bytes
    assert set(change.executable) <= set(change.files)
    assert len(change.digest) == 64
    return f"{len(change.files)} files, {len(change.touched)} protected"


def _run_patch(data: bytes) -> str:
    patch = data.decode("utf-8", "surrogateescape")
    try:
        plain = plain_diff(patch, _PRISTINE.get, ("binary",))
        turned = reversed_diff(plain)
    except DiffError as error:
        return kind_of(error)
    assert reversed_diff(turned) or not turned or "@@" not in turned
    return "plain" if plain else "empty"


_PATHS = st.sampled_from(
    [*_PRISTINE, "new.py", "out", "out/x", "build", "build/x", "pkg", "../x", "a.py/b", ".git/x", "/x", "pkg/link"]
)
_LINES = st.sampled_from(
    ["one", "two", "three", "é", "last line", "", "new", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "diff --git a/x b/x"]
)
_SIGNED = st.builds(lambda sign, line: sign + line, st.sampled_from([" ", "-", "+", "\\ "]), _LINES)
_COUNTS = st.integers(0, 4) | st.just(999_999_999)


@st.composite
def _hunks(draw: st.DrawFn) -> str:
    body = draw(st.lists(_SIGNED | st.just("\\ No newline at end of file"), max_size=6))
    old, new = (sum(line[:1] in kinds for line in body) for kinds in (" -", " +"))
    if draw(st.integers(0, 5)) == 0:
        old, new = draw(_COUNTS), draw(_COUNTS)
    start = draw(_COUNTS)
    return "".join(f"{line}\n" for line in (f"@@ -{start},{old} +{start},{new} @@ x", *body))


@st.composite
def _sections(draw: st.DrawFn) -> str:
    path = draw(_PATHS)
    other = path if draw(st.integers(0, 7)) else draw(_PATHS)
    before, after = draw(
        st.sampled_from([(f"a/{path}", f"b/{other}"), ("/dev/null", f"b/{path}"), (f"a/{path}", "/dev/null")])
    )
    head = f"diff --git a/{path} b/{other}\n" if draw(st.booleans()) else ""
    for line in draw(
        st.lists(
            st.sampled_from(
                [
                    "new file mode 100644",
                    "deleted file mode 100644",
                    "old mode 100644",
                    "new mode 100755",
                    "index 0..a 100644",
                    f"rename from {path}",
                    f"rename to {other}",
                    "similarity index 90%",
                    f"copy from {path}",
                    "GIT binary patch",
                ]
            ),
            max_size=3,
        )
        if head
        else st.just([])
    ):
        head += f"{line}\n"
    body = draw(st.lists(_hunks(), max_size=2))
    return head + (f"--- {before}\n+++ {after}\n{''.join(body)}" if body or draw(st.booleans()) else "")


_DIFFS = st.lists(_sections(), max_size=3).map(lambda found: "".join(found).encode())


def _examples() -> list[bytes]:
    return [
        b"--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n",
        b"diff --git a/new.py b/new.py\nnew file mode 100755\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n",
        b"diff --git a/empty b/empty\ndeleted file mode 100644\n",
        "--- a/pkg/b.py\n+++ b/pkg/b.py\n@@ -2 +2 @@\n-last line\n\\ No newline at end of file\n+é\n".encode(),
        b"diff --git a/a.py b/c.py\nsimilarity index 90%\nrename from a.py\nrename to c.py\n"
        b"--- a/a.py\n+++ b/c.py\n@@ -1 +1 @@\n-one\n+1\n",
    ]


TARGETS = (
    Target("diff", _run, _DIFFS, ("etude.tasks.diff", "etude.tasks.change"), _examples),
    Target("patch", _run_patch, _DIFFS, ("etude.tasks.diff", "etude.tasks.formats.swebench.plain_patches"), _examples),
)
