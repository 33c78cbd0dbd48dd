"""Harbor tasks in real boxes: environments are built, solve.sh and test.sh run, rewards become verdicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sandbox.hosts import TAKES_ITS_SHARE

from etude.recipe import Recipe
from etude.rollout import RolloutSetup, subject_of
from etude.sandbox.contract import Limits
from etude.tasks import Grader, Judgement, Split, TaskError, Verdict, open_verifier, read_task
from etude.tasks.agent_box import agent_box
from etude.tasks.verifiers.harbor import grade_steps, reference_of, step_tasks

from ..conftest import Grade
from .harbor_tasks import DOCKERFILE, GREETS, STEPS, VERSIONS, greeting, two_steps, write

PLANTS = "--- /dev/null\n+++ b/plant.sh\n@@ -0,0 +1 @@\n+echo 1\n"
HELLO = "--- a/greeting.txt\n+++ b/greeting.txt\n@@ -1 +1 @@\n-none\n+hello\n"
SHARED = VERSIONS["1.0"]


Graded = Callable[..., Verdict]


@pytest.fixture
def graded(grade: Grade) -> Graded:
    return lambda task, diff=HELLO: grade(task, diff)[0]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_task_of_each_schema_version_runs(grader: Grader, tmp_path: Path, version: str) -> None:
    task = greeting(tmp_path, VERSIONS[version])
    (solution,) = await reference_of(task, grader.environments)
    good, idle = await grader.grade(task, solution), await grader.grade(task, "")
    assert (good.judgement, good.reason) == (Judgement.PASS, "reward 1")
    assert (idle.judgement, idle.reason) == (Judgement.FAIL, "reward 0, 1 is needed")
    assert (good.evidence.score, good.evidence.exit_code, good.evidence.sealed) == (1.0, 0, False)


def test_a_reward_that_an_agent_planted_is_gone_before_the_tests(graded: Graded, tmp_path: Path) -> None:
    dockerfile = "FROM host\nWORKDIR /logs\nRUN mkdir verifier && echo none > greeting.txt\n"
    plant = "--- /dev/null\n+++ b/verifier/reward.json\n@@ -0,0 +1 @@\n+1\n"
    task = greeting(tmp_path, environment__Dockerfile=dockerfile, tests__test_sh="#!/bin/sh\nexit 0\n")
    verdict = graded(task, plant)
    assert verdict.judgement is Judgement.ERROR
    assert "wrote neither reward.json nor reward.txt" in verdict.reason


def test_a_reward_that_collecting_left_is_gone_before_the_tests(graded: Graded, tmp_path: Path) -> None:
    toml = SHARED + '[[verifier.collect]]\ncommand = "echo 1 > /logs/verifier/reward.json; echo yes > collected"\n'
    empty = (
        "#!/bin/sh\n[ -f collected ] && [ ! -e /logs/verifier/reward.json ] && echo 0.25 > /logs/verifier/reward.txt\n"
    )
    assert graded(greeting(tmp_path, toml, tests__test_sh=empty)).evidence.score == 0.25


def test_the_json_counts_before_the_text(graded: Graded, tmp_path: Path) -> None:
    script = '#!/bin/sh\ncd /logs/verifier; echo 0 > reward.txt; echo \'{"reward": 1, "style": 0.5}\' > reward.json\n'
    verdict = graded(greeting(tmp_path, tests__test_sh=script))
    assert (verdict.judgement, verdict.evidence.score) == (Judgement.PASS, 1.0)


def test_who_is_to_blame_for_a_missing_reward_is_decided_by_the_untouched_workspace(
    graded: Graded, tmp_path: Path
) -> None:
    brittle = "#!/bin/sh\nset -e\ngrep -q none greeting.txt\necho 0 > /logs/verifier/reward.txt\n"
    theirs = graded(greeting(tmp_path / "theirs", tests__test_sh=brittle))
    assert (theirs.judgement, theirs.evidence.exit_code) == (Judgement.FAIL, 1)
    assert "neither reward.json nor reward.txt" in theirs.reason
    ours = graded(greeting(tmp_path / "ours", tests__test_sh="#!/bin/sh\nexit 3\n"))
    assert (ours.judgement, ours.evidence.exit_code) == (Judgement.ERROR, 3)
    idle = graded(greeting(tmp_path / "idle", tests__test_sh="#!/bin/no-such-shell\n"), "")
    assert idle.judgement is Judgement.ERROR


NO_REWARDS = (
    *(f"echo {text} > reward.txt" for text in ("nan", "inf", "1e999", "one", "")),
    *(f"echo '{text}' > reward.json" for text in ("[1]", '{"score": 1}')),
    *("head -c 70000 /dev/zero > reward.txt", "ln -s /dev/zero reward.txt", "mkdir reward.txt"),
)


@pytest.mark.parametrize("makes", NO_REWARDS)
def test_a_reward_that_is_no_file_with_a_finite_number_is_none(graded: Graded, tmp_path: Path, makes: str) -> None:
    verdict = graded(greeting(tmp_path, tests__test_sh=f"#!/bin/sh\ncd /logs/verifier && {makes}\n"))
    assert verdict.judgement is Judgement.ERROR
    assert verdict.evidence.score == 0.0


@pytest.mark.parametrize(
    ("host", "waits", "judgement"),
    [
        ("with_time_enough", "while :; do :; done", Judgement.FAIL),
        ("short_of_time", TAKES_ITS_SHARE, Judgement.ERROR),
        ("short_of_time", "sleep 20", Judgement.FAIL),
    ],
)
def test_a_loop_is_a_fail_by_its_limit_unless_the_host_is_to_blame(
    graded: Graded, tmp_path: Path, request: pytest.FixtureRequest, host: str, waits: str, judgement: Judgement
) -> None:
    request.getfixturevalue(host)
    toml = VERSIONS["1.0"].replace("[environment]", "[environment]\ncpus = 4") + "[verifier]\ntimeout_sec = 1\n"
    script = f"#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n{waits}\n"
    verdict = graded(greeting(tmp_path, toml, tests__test_sh=script))
    assert (verdict.judgement, verdict.evidence.timed_out) == (judgement, True)
    assert "exceeded its limit of time" in verdict.reason


def test_an_unhealthy_environment_is_no_fail_of_the_agent(graded: Graded, tmp_path: Path) -> None:
    toml = SHARED + '[environment.healthcheck]\ncommand = "echo ill; exit 1"\ninterval_sec = 0\nretries = 2\n'
    verdict = graded(greeting(tmp_path, toml))
    assert verdict.judgement is Judgement.ERROR
    assert verdict.reason == "there is no reward: the healthcheck failed 2 times: ill"


def test_links_within_tests_are_followed(graded: Graded, tmp_path: Path) -> None:
    greeting(tmp_path, tests__shared__real_sh=GREETS)
    (tmp_path / "tests/test.sh").unlink()
    (tmp_path / "tests/test.sh").symlink_to("shared/real.sh")
    assert graded(read_task(tmp_path, set(Split))).passed


# -- a box of the verifier's own

SEPARATE = """\
schema_version = "1.4"
artifacts = ["{artifact}"]
[verifier]
environment_mode = "separate"
[environment]
memory_mb = 512
workdir = "/app"
env = {{GREETING = "hello"}}
"""


def test_a_separate_verifier_gets_the_declared_artifacts_alone(graded: Graded, tmp_path: Path) -> None:
    script = (
        '#!/bin/sh\n[ "$(cat greeting.txt)" = hello ] && [ ! -e plant.sh ] && echo 1 > /logs/verifier/reward.txt'
        " || echo 0 > /logs/verifier/reward.txt\n"
    )
    task = greeting(tmp_path, SEPARATE.format(artifact="/app/greeting.txt"), tests__test_sh=script)
    verdict = graded(task, HELLO + PLANTS)
    assert verdict.passed, verdict
    assert not graded(task, PLANTS).passed


@pytest.mark.parametrize(("artifact", "sealed"), [("/app/greeting.txt", True), ("/app", False), ("run.py", False)])
def test_it_is_sealed_if_nothing_of_the_agents_can_run_beside_its_tests(
    tmp_path: Path, artifact: str, sealed: bool
) -> None:
    task = greeting(tmp_path, SEPARATE.format(artifact=artifact))
    assert open_verifier(task).sealed is sealed


def test_an_artifact_leads_nowhere(graded: Graded, tmp_path: Path) -> None:
    """A collect hook, or the agent's code that it runs, leaves links in place of files."""
    toml = SEPARATE.format(artifact="/app/out") + '[[verifier.collect]]\ncommand = "mkdir out; ln -s /tests out/link"\n'
    script = "#!/bin/sh\n[ -d /app/out ] && [ ! -L /app/out/link ] && echo 1 > /logs/verifier/reward.txt\n"
    assert graded(greeting(tmp_path, toml, tests__test_sh=script)).passed


def test_artifacts_of_the_image_are_none_of_the_agents(graded: Graded, tmp_path: Path) -> None:
    baked = "FROM host\nUSER root\nRUN mkdir -p /logs/artifacts && touch /logs/artifacts/baked\n"
    hook = '[[verifier.collect]]\ncommand = "cp greeting.txt /logs/artifacts"\n'
    script = '#!/bin/sh\n[ "$(ls /logs/artifacts)" = greeting.txt ] && echo 1 > /logs/verifier/reward.txt\n'
    task = greeting(tmp_path, SEPARATE.format(artifact="greeting.txt") + hook, tests__test_sh=script)
    write(tmp_path, {"environment/Dockerfile": DOCKERFILE.replace("FROM host\n", baked)})
    assert graded(task).passed


def test_the_verifiers_own_image_is_built_from_tests(graded: Graded, tmp_path: Path) -> None:
    toml = SEPARATE.format(artifact="/app/greeting.txt").replace(
        "[environment]", "[verifier.environment]\n[environment]"
    )
    dockerfile = "FROM host\nWORKDIR /judge\nCOPY test.sh /tests/test.sh\nRUN echo yes > /judge/own\n"
    script = "#!/bin/sh\n[ -f own ] && grep -q hello /app/greeting.txt && echo 1 > /logs/verifier/reward.txt\n"
    assert graded(greeting(tmp_path, toml, tests__Dockerfile=dockerfile, tests__test_sh=script)).passed


# -- several steps


async def test_steps_are_solved_and_graded_one_after_another(grader: Grader, tmp_path: Path) -> None:
    task = two_steps(tmp_path)
    assert task.instruction == ("Step 1 of 2\n\nWrite anything to one.txt.\n\nStep 2 of 2\n\nRename it to two.txt.")
    assert [step.instruction for step in step_tasks(task)] == ["Write anything to one.txt.", "Rename it to two.txt."]
    diffs = await reference_of(task, grader.environments)
    assert len(diffs) == 2
    stepwise = await grade_steps(grader, task, diffs)
    assert stepwise.passed, stepwise
    assert stepwise.reason == "2 of 2 steps passed (scaffold: reward 1, extend: reward 1)"
    # In the end the first step's file is gone: as one change it is judged by what is there.
    at_once = await grader.grade(task, diffs[-1])
    assert at_once.judgement is Judgement.FAIL
    assert at_once.reason == "0 of 2 steps passed (scaffold 0)"
    assert at_once.evidence.failed_tests == ("scaffold", "extend")
    half = await grade_steps(grader, task, [diffs[0], diffs[0]])
    assert (half.judgement, half.evidence.failed_tests, half.evidence.score) == (Judgement.FAIL, ("extend",), 0.5)
    with pytest.raises(TaskError, match="one for each of 2 steps, found 3"):
        await grade_steps(grader, task, [*diffs, ""])


def test_a_step_that_gates_nothing_lets_the_next_be_graded(graded: Graded, tmp_path: Path) -> None:
    task = two_steps(tmp_path, STEPS.replace("min_reward = 1.0\n", ""))
    both = "--- /dev/null\n+++ b/two.txt\n@@ -0,0 +1 @@\n+x\n"
    verdict = graded(task, both)
    assert (verdict.judgement, verdict.evidence.score) == (Judgement.FAIL, 0.5)
    assert verdict.reason == "1 of 2 steps passed (scaffold 0, extend 1)"
    assert graded(task, both + both.replace("two", "one")).passed


# -- references


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("#!/bin/sh\necho no luck >&2; exit 4\n", "solve.sh: expected exit code 0, found 4: no luck"),
        ("#!/bin/sh\ntouch /elsewhere\n", "expected a change below /app, there is none"),
        ("#!/bin/sh\nprintf '\\0' > greeting.txt\n", "expected changes to text files"),
    ],
)
async def test_a_solution_that_is_none_is_named(grader: Grader, tmp_path: Path, script: str, problem: str) -> None:
    task = greeting(tmp_path, solution__solve_sh=script)
    with pytest.raises(TaskError, match=r"solution/solve\.sh") as caught:
        await reference_of(task, grader.environments)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("gpus = 1\n", "environment.gpus: expected none"),
        ('os = "windows"\n', 'environment.os: expected "linux"'),
        ('[[environment.mcp_servers]]\nname = "web"\nurl = "http://a.example"\n', "mcp_servers: expected none"),
        ('[verifier.env]\nKEY = "${SECRET}"\n', "${SECRET}: expected a value: set ETUDE_TASK_SECRET"),
    ],
)
def test_what_cannot_be_run_here_is_refused_by_name(graded: Graded, tmp_path: Path, toml: str, problem: str) -> None:
    verdict = graded(greeting(tmp_path, f"[environment]\n{toml}"))
    assert verdict.judgement is Judgement.ERROR
    assert problem in verdict.reason


async def test_an_agents_box_has_the_variables_and_the_room_that_the_task_asks_for(
    grader: Grader, tmp_path: Path
) -> None:
    task = greeting(tmp_path, VERSIONS["1.1"] + "[environment.colours]\nkept = true\n")
    limits, env = agent_box(task, Limits(memory_mb=256))
    assert (limits.memory_mb, env) == (512, (("GREETING", "hello"),))
    assert agent_box(task, Limits(memory_mb=1024))[0].memory_mb == 1024
    recipe = Recipe.model_validate({"name": "harbor"})
    setup = RolloutSetup(grader.sandboxes, grader, recipe.harness, recipe.sandbox, grader.environments)
    workspace = setup.workspace(await subject_of(task, grader.environments), "agent")
    said = await workspace.exec('echo "$GREETING from $PWD"', timeout=10)
    assert said.stdout == b"hello from /app\n"
    await workspace.close()


def test_a_task_gets_no_variable_that_was_not_meant_for_it(
    graded: Graded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREETING", "this machine's own")
    task = greeting(tmp_path, VERSIONS["1.1"])
    assert graded(task).passed
    monkeypatch.setenv("ETUDE_TASK_GREETING", "lent")
    assert not graded(task).passed
    assert graded(task, HELLO.replace("hello", "lent")).passed
