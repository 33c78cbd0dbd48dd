"""Ids of rows and ids of runners."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.tasks.verifiers.swebench import dotted, is_ambiguous, is_cut, may_mean, runner_ids
from etude.tasks.verifiers.swebench.suite import with_runner_ids
from etude.tasks.verifiers.tests import Suite, SuiteConfig
from etude.tasks.verifiers.tests.run_output import Rows

PARAMETERS = st.text("abc -/.[]", max_size=10)
IDS = st.tuples(st.sampled_from(["t.py::a", "t.py::ab", "t.py::A::a"]), PARAMETERS).map(
    lambda drawn: f"{drawn[0]}[{drawn[1]}]"
)


@given(st.lists(IDS, max_size=8), st.data())
def test_a_cut_id_stands_for_all_that_begin_so(found: list[str], data: st.DataObject) -> None:
    test = data.draw(IDS | st.just("t.py::a"))
    cut = test[: data.draw(st.integers(1, len(test)))]
    names = runner_ids(cut, found)
    assert names, "never nothing: nothing would pass"
    if is_cut(cut):
        begun = tuple(sorted(name for name in found if name.startswith(cut)))
        assert names == ((cut,) if cut in found else begun or (cut,))
    elif not is_ambiguous(cut):
        assert names == (cut,)
    assert all(name == cut or may_mean(cut, name) for name in names)


def test_an_exact_id_stands_for_itself_alone() -> None:
    found = ["t.py::a[1]", "t.py::a[12]", "t.py::a"]
    assert runner_ids("t.py::a[1]", found) == ("t.py::a[1]",)
    assert runner_ids("t.py::a", found) == ("t.py::a",)
    assert runner_ids("t.py::a[1", found) == ("t.py::a[12]", "t.py::a[1]")
    assert runner_ids("t.py::b[", found) == ("t.py::b[",), "absent: it will not be heard of, and fails"


def test_a_path_of_which_the_last_part_was_kept() -> None:
    found = ["t.py::a[/home/x/file]", "t.py::a[/home/x/other]", "t.py::b[/home/x/file]"]
    assert runner_ids("t.py::a[/file]", found) == ("t.py::a[/home/x/file]",)


def test_what_unittest_prints_becomes_what_it_loads() -> None:
    assert dotted("test_a (package.module.Class)") == "package.module.Class.test_a"
    assert dotted("test_a (package.module.Class.test_a)") == "package.module.Class.test_a"
    assert dotted("package.module.Class.test_a") == "package.module.Class.test_a"
    for other in ("test_a", "test_a (Class)", "A test that tells of itself.", "t.py::a", "", "a.b"):
        assert dotted(other) is None


def test_a_suite_is_settled_by_the_run_of_its_reference() -> None:
    suite = Suite(SuiteConfig(runner="pytest"), {}, ("t.py::a[x",), ("t.py::a[x 1]", "t.py::s", "t.py::f", "t.py::e"))
    outcomes = {"t.py::a[x 1]": "passed", "t.py::a[x 2]": "passed", "t.py::s": "skipped", "t.py::f": "xfailed"}
    found = with_runner_ids(suite, Rows(outcomes=outcomes))
    assert found.fail_to_pass == ("t.py::a[x 1]", "t.py::a[x 2]")
    assert found.pass_to_pass == ("t.py::s", "t.py::f", "t.py::e")
    assert found.may_skip == {"t.py::s", "t.py::f"}, "what the reference skips, and nothing else"


def test_a_test_to_be_mended_may_not_be_skipped() -> None:
    suite = Suite(SuiteConfig(runner="pytest"), {}, ("t.py::a",))
    assert with_runner_ids(suite, Rows(outcomes={"t.py::a": "skipped"})).may_skip == frozenset()
