from __future__ import annotations

from collections.abc import Collection

import pytest

from etude.sandbox.contract import Limits, Sandboxes
from etude.tasks.change import Change, change_of
from etude.tasks.diff import Bounds, DiffError
from etude.tasks.environment import Prepared
from etude.tasks.task import Task
from etude.tasks.verifiers import GradingContext

CREATE = "--- /dev/null\n+++ b/{}\n@@ -0,0 +1 @@\n+x\n"
PRISTINE = {"a.py": b"a\n", "run": b"#!/bin/sh\n", "d/b.py": b"b\n", "e/logo.png": b"\x89PNG\xff"}


def nothing(path: str) -> bool:
    return False


def change(diff: str, **more: Collection[str]) -> Change:
    return change_of(diff, PRISTINE, nothing, **more)


@pytest.mark.parametrize(
    ("diff", "problem"),
    [
        (CREATE.format("link"), "link is a link"),
        (CREATE.format("link/conftest.py"), "link is a link"),
        (CREATE.format("d/in/x.py"), "d/in is a link"),
        (CREATE.format("e"), "e is a folder"),
        (CREATE.format("empty"), "empty is a folder"),
        (CREATE.format("e/logo.png"), "exists already and is not a text file"),
        (CREATE.format("e/logo.png/x"), "exists already and is not a text file"),
        (CREATE.format("a.py/x"), "a file and a folder"),
    ],
)
def test_a_change_reaches_no_place_but_that_of_a_plain_file(diff: str, problem: str) -> None:
    with pytest.raises(DiffError, match=problem):
        change(diff, links={"link", "d/in"}, folders={"empty"})


def test_new_files_below_empty_folders_are_changes_like_others() -> None:
    assert change(CREATE.format("empty/x"), folders={"empty"}).files == {"empty/x": b"x\n"}


def test_modes_are_kept_and_given() -> None:
    body = "--- a/{0}\n+++ b/{0}\n@@ -1 +1,2 @@\n {1}\n+more\n"
    assert change(body.format("run", "#!/bin/sh"), executable={"run"}).executable == {"run"}
    assert change(body.format("a.py", "a"), executable={"run"}).executable == frozenset()
    mode = "diff --git a/a.py b/a.py\nold mode 100644\nnew mode 100755\n"
    assert change(mode) == Change({"a.py": b"a\n"}, executable=frozenset({"a.py"}))
    both = change(mode + "index 123..456\n" + body.format("a.py", "a"))
    assert both == Change({"a.py": b"a\nmore\n"}, executable=frozenset({"a.py"}))
    fresh = "diff --git a/new b/new\nnew file mode 100755\nindex 000..123\n" + CREATE.format("new")
    assert change(fresh) == Change({"new": b"x\n"}, executable=frozenset({"new"}))
    empty = change("diff --git a/new b/new\nnew file mode 100755\nindex 000..123\n")
    assert empty == Change({"new": b""}, executable=frozenset({"new"}))
    plain = change("diff --git a/run b/run\nold mode 100755\nnew mode 100644\n", executable={"run"})
    assert plain == Change()
    assert change(fresh).digest != change(CREATE.format("new")).digest


def test_many_large_files_do_not_fill_the_graders_disk() -> None:
    pristine = {f"{n}": b"line\n" * 100_000 for n in range(5)}
    diff = "".join(f"--- a/{n}\n+++ b/{n}\n@@ -1 +1 @@\n-line\n+other\n" for n in pristine)
    with pytest.raises(DiffError, match="more than 2000000 bytes"):
        change_of(diff, pristine, nothing, Bounds(all_bytes=2_000_000))
    assert len(change_of(diff, pristine, nothing, Bounds(all_bytes=3_000_000)).files) == 5


async def test_a_stand_applies_a_change_with_its_modes(sandboxes: Sandboxes, train_tasks: list[Task]) -> None:
    files = {"run": b"#!/bin/sh\necho old\n", "d/one": b"1\n", "d/two": b"2\n", "kept": b"k\n"}
    pristine = Prepared(await sandboxes.add_image(dict(files)), "/work", files, frozenset({"run"}))
    diff = (
        "--- a/run\n+++ b/run\n@@ -1,2 +1,2 @@\n #!/bin/sh\n-echo old\n+echo new\n"
        "--- a/d/one\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
        "--- a/d/two\n+++ /dev/null\n@@ -1 +0,0 @@\n-2\n"
        "diff --git a/d b/d\nnew file mode 100755\n--- /dev/null\n+++ b/d\n@@ -0,0 +1,2 @@\n+#!/bin/sh\n+echo d\n"
    )
    context = GradingContext(train_tasks[0], sandboxes, pristine, pristine.change(diff, nothing))
    async with context.box(Limits()) as box:
        said = await box.exec("./run && ./d && ls", timeout=20)
        assert said.stdout == b"new\nd\nd\nkept\nrun\n", said
