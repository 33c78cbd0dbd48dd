"""etude tasks: what a person sees, beside what a script reads; mistakes as one line with code 2."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.cli import here
from tests.needs import second_user
from tests.tasks.formats.harbor_tasks import VERSIONS, greeting, two_steps
from tests.tasks.formats.swebench.repository import classic, make_repository, write_rows

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.tasks import Split, Task, make_tasks, open_source
from etude.tasks.seal.base_scan import HostIndex, list_base
from etude.trace import Trace, write_traces

VERBS = ("list", "show", "make", "check", "grade", "import", "export", "overlap")


etude = partial(here.etude, "tasks")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module", autouse=True)
def no_lines_of_the_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A book of the host's base that is there already: to write one takes a minute."""
    cache = tmp_path_factory.mktemp("cache")

    async def digest() -> str:
        sandboxes = open_sandboxes(SandboxRecipe(), tmp_path_factory.mktemp("base"))
        try:
            return (await list_base(sandboxes)).digest
        finally:
            await sandboxes.close()

    (cache / "etude").mkdir()
    empty = HostIndex(np.empty(0, np.uint64), np.empty(0, np.uint32), ())
    (cache / "etude" / f"{asyncio.run(digest())}.base").write_bytes(empty.dump())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    return make_tasks(open_source("microrepo"), Split.DEV, 2, 1, tmp_path_factory.mktemp("ours"))


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    return greeting(tmp_path / "hello", VERSIONS["1.1"]).directory


def test_the_list_of_verbs_is_read_at_a_glance() -> None:
    shown = etude("--help").stdout
    assert "..." not in shown.partition("Commands:")[2]
    assert all(f"\n  {verb} " in shown for verb in VERBS)


def test_the_same_words_make_the_same_tasks_once(tmp_path: Path) -> None:
    words = ("make", "microrepo", tmp_path / "t", "--train", 2, "--dev", 1, "--seed", 3)
    first = etude(*words)
    assert first.returncode == 0
    made = [Path(line) for line in first.stdout.splitlines()]
    assert [path.parent.name for path in made] == ["train", "train", "dev"]
    times = [(path / "task.toml").stat().st_mtime_ns for path in made]
    assert etude(*words).stdout == first.stdout
    assert [(path / "task.toml").stat().st_mtime_ns for path in made] == times
    unknown = etude("make", "nosuch", tmp_path)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "there are: debugging, " in unknown.stderr


# -- list


def test_a_line_for_each_task(ours: list[Task], hello: Path) -> None:
    folder = ours[0].directory.parents[1]
    shown = etude("list", folder)
    assert shown.returncode == 0
    assert shown.stdout.splitlines() == [
        "ID                   CATEGORY   SPLIT  VERIFIER  GRADED  GATE",
        "microrepo-dev-00000  debugging  dev    cases     sealed  -",
        "microrepo-dev-00001  debugging  dev    cases     sealed  -",
    ]
    assert shown.stderr == "2 tasks\n"
    assert "hello  unknown   " in etude("list", hello.parent).stdout


def test_a_list_is_narrowed_and_read_by_scripts(ours: list[Task]) -> None:
    folder = ours[0].directory.parents[1]
    none = etude("list", folder, "--split", "test")
    assert (none.stdout, none.stderr) == ("", "0 tasks, 2 of another split or category\n")
    (first, _) = json.loads(etude("list", folder, "--category", "debugging", "--json").stdout)
    assert (first["id"], first["split"], first["graded"]) == ("microrepo-dev-00000", "dev", "sealed")
    assert Path(first["directory"]) == ours[0].directory


def test_a_task_that_cannot_be_read_is_named_beside_the_others(hello: Path) -> None:
    (hello.parent / "bad").mkdir()
    (hello.parent / "bad/task.toml").write_text("agent = 3\n")
    shown = etude("list", hello.parent)
    assert shown.returncode == 1
    assert len(shown.stdout.splitlines()) == 2
    assert shown.stderr.splitlines()[1:] == [
        f"not read: {hello.parent}/bad/task.toml: agent: expected a table, found 3"
    ]


# -- show


def test_a_task_on_a_page(ours: list[Task], hello: Path) -> None:
    page = etude("show", ours[0].directory).stdout
    for words in (ours[0].instruction, "cases, sealed", "solution/patch.diff", "not gated", "source   microrepo"):
        assert words in page
    foreign = etude("show", hello).stdout
    for words in ("Write hello to greeting.txt.", "built from environment/Dockerfile", "harbor, open", "tests/test.sh"):
        assert words in foreign


# -- check


def test_every_mistake_is_named_at_once(ours: list[Task], hello: Path) -> None:
    fine = etude("check", ours[0].directory)
    assert (fine.returncode, fine.stdout) == (0, f"ok   {ours[0].directory}\n1 task, none with mistakes\n")
    bad = hello / "task.toml"
    bad.write_text('schema_version = "3"\ncolour = 1\n[environment]\ncpus = "two"\n[agent]\ntimeout_sec = 0\n')
    (hello / "tests/link").symlink_to("/etc/passwd")
    shown = etude("check", hello)
    assert shown.returncode == 1
    head, *mistakes, summary = shown.stdout.splitlines()
    assert (head, summary) == (f"bad  {hello}", "1 task, 1 with mistakes")
    assert [line.split(": expected")[0].strip() for line in mistakes] == [
        "task.toml: schema_version",
        "task.toml: agent.timeout_sec",
        "task.toml: environment.cpus",
        "tests/link",
    ]
    (hello / "tests/link").unlink()
    bad.write_text("[environment]\nmemroy_mb = 1\n")
    noted = etude("check", hello)
    assert (noted.returncode, noted.stdout.count("note: environment.memroy_mb is not a key of Harbor's")) == (0, 1)


@pytest.mark.slow
def test_check_with_the_gate(hello: Path, store: Path) -> None:
    assert etude("check", hello, "--gate", "--store", store).returncode == 0
    assert (hello / "solution/patch.diff").read_text().endswith("+hello\n")
    (hello / "tests/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    shown = etude("check", hello, "--gate", "--store", store)
    assert shown.returncode == 1
    assert "reward 1" in shown.stdout


# -- grade

WRITES = "--- a/greeting.txt\n+++ b/greeting.txt\n@@ -1 +1 @@\n-none\n+{}\n"


def test_a_change_is_graded(hello: Path, store: Path) -> None:
    good = etude("grade", hello, "--diff", "-", "--store", store, given=WRITES.format("hello"))
    assert good.returncode == 0
    assert good.stdout.startswith("PASS     reward 1  (open, ")
    (hello / "x.diff").write_text(WRITES.format("goodbye"))
    bad = etude("grade", hello, "--diff", hello / "x.diff", "--store", store)
    assert bad.returncode == 1
    assert bad.stdout.startswith("FAIL     reward 0, 1 is needed  (open, ")
    for shown in (good, bad):
        assert shown.stderr == ""


@second_user
def test_the_reference_again_and_again(ours: list[Task], store: Path) -> None:
    shown = etude("grade", ours[0].directory, "--solution", "--times", "2", "--store", store)
    assert shown.returncode == 0
    assert shown.stdout.count("PASS     all ") == 2
    assert "(sealed, " in shown.stdout
    assert shown.stdout.splitlines()[-1].startswith("2 of 2 passed, ")


def test_nothing_for_a_script(hello: Path, store: Path) -> None:
    shown = etude("grade", hello, "--nothing", "--json", "--store", store)
    (verdict,) = json.loads(shown.stdout)
    assert (shown.returncode, verdict["judgement"], verdict["evidence"]["score"]) == (1, "fail", 0.0)


def test_each_step_has_a_diff(tmp_path: Path, store: Path) -> None:
    task = two_steps(tmp_path / "two").directory
    shown = etude("grade", task, "--solution", "--store", store)
    assert shown.stdout.startswith("PASS     2 of 2 steps passed (scaffold: reward 1, extend: reward 1)")
    (tmp_path / "one.diff").write_text("--- /dev/null\n+++ b/one.txt\n@@ -0,0 +1 @@\n+x\n")
    shown = etude("grade", task, *("--diff", tmp_path / "one.diff") * 2, "--store", store)
    assert shown.returncode == 1
    assert "1 of 2 steps passed" in shown.stdout


# -- import and export


def test_tasks_come_in_and_go_out(tmp_path: Path, hello: Path) -> None:
    shown = etude("import", hello, tmp_path / "in")
    assert shown.returncode == 0
    (where,) = shown.stdout.splitlines()
    assert shown.stderr.splitlines()[-1].startswith("1 task: 1 for ")
    out = etude("export", tmp_path / "in", tmp_path / "out")
    assert out.stdout == f"{tmp_path}/out/hello\n"
    assert (Path(where) / "task.toml").read_bytes() == (tmp_path / "out/hello/task.toml").read_bytes()


def test_what_cannot_go_out_is_told_and_the_rest_goes(tmp_path: Path, hello: Path) -> None:
    other = tmp_path / "tasks" / "other"
    shutil.copytree(hello, tmp_path / "tasks" / "hello")
    shutil.copytree(hello, other)
    (other / "tests/test.sh").unlink()
    out = etude("export", tmp_path / "tasks", tmp_path / "out")
    assert (out.returncode, out.stdout) == (2, f"{tmp_path}/out/hello\n")
    (told,) = [line for line in out.stderr.splitlines() if line.startswith("refused: ")]
    assert f"{other}/tests/test.sh: expected a file" in told


@pytest.mark.slow
def test_instances_come_in_and_predictions_are_graded(tmp_path: Path, store: Path) -> None:
    repository = make_repository(tmp_path / "clone")
    rows = write_rows(tmp_path / "rows.jsonl", classic(repository))
    shown = etude("import", rows, tmp_path / "in", "--clones", repository.folder)
    assert shown.returncode == 0, shown.stderr
    (where,) = shown.stdout.splitlines()
    assert shown.stderr.splitlines()[-1].startswith("1 task: 1 for ")
    gold = Trace("1", "acme__ledger-7", "dev", "g", 0, "policy", 1, diff=repository.patch)
    write_traces(tmp_path / "traces.parquet", [gold])
    made = etude("export", tmp_path / "traces.parquet", tmp_path / "preds.json", "--model", "ours")
    assert (made.returncode, made.stdout) == (0, f"{tmp_path}/preds.json\n"), made.stderr
    report = tmp_path / "report.json"
    words = ("grade", tmp_path / "in", "--predictions", tmp_path / "preds.json", "--report", report, "--store", store)
    graded = etude(*words)
    assert graded.returncode == 0, graded.stderr
    assert graded.stdout.splitlines()[0] == "resolved      1"
    assert json.loads(report.read_text())["resolved_ids"] == ["acme__ledger-7"]
    assert json.loads(etude(*words, "--json").stdout) == json.loads(report.read_text())
    twice = etude(*words, "--times", "2")
    assert (twice.returncode, twice.stderr.count("\n")) == (2, 1)
    assert "graded once: leave out --diff, " in twice.stderr
    assert etude("grade", where, "--nothing", "--store", store).returncode == 1


def test_a_row_that_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"instance_id": 3}\n')
    shown = etude("import", tmp_path / "rows.jsonl", tmp_path / "in")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert f"{tmp_path}/rows.jsonl: line 1: " in shown.stderr


# -- mistakes


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("list", "{here}/nowhere"), "nowhere: expected a folder"),
        (("list", "{here}/empty"), "expected a task, or a folder with tasks in it"),
        (("list", "{here}", "--split", "all"), "--split: expected train, dev, test, found 'all'"),
        (("show", "{here}"), "expected a task's directory, there is no task.toml"),
        (("grade", "{here}/hello"), "expected one of --diff FILE, --solution and --nothing"),
        (("grade", "{here}/hello", "--nothing", "--solution"), "expected one of --diff FILE"),
        (("grade", "{here}/hello", "--diff", "{here}/none"), "none: expected a diff: No such file"),
        (("grade", "{here}/hello", "--nothing", "--egress", "no-such"), "--egress: egress 'no-such'"),
        (("export", "{here}/hello", "{here}/preds.json"), "a file of predictions needs --model NAME"),
        (("check", "{here}/hello", "--again"), "expected tasks that have passed their gate, found none"),
        (("import", "{here}/nowhere", "{here}/in"), "SWE-bench rows, but this path does not exist"),
        (("import", "{here}/empty", "{here}/in"), "SWE-bench rows, found none"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, hello: Path, words: tuple[str, ...], problem: str) -> None:
    (tmp_path / "empty").mkdir()
    shown = etude(*(word.format(here=tmp_path) for word in words))
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert problem in shown.stderr
    assert shown.stderr.startswith("etude: ")
    assert shown.stderr.count("\n") == 1
