"""bash and jobs as the agent uses them: over files that it also edits, and over a self-summary."""

from __future__ import annotations

from tests.contract.sandbox.support import in_loop
from tests.harness.parts import Bench, in_a_box

from etude.sandbox import Sandboxes


@in_loop
async def test_edits_and_commands_see_each_other(sandboxes: Sandboxes) -> None:
    bench = await in_a_box(sandboxes)
    assert await bench.say("bash", command="cd pack && python ../check.py") == "FAIL larger\n(exit code 1)"
    await bench.call("replace", path="calc.py", old="min", new="max")
    assert await bench.say("bash", command="python ../check.py; echo y = 1 >> other.py; rm ../check.py") == "ok"
    assert await bench.say("list") == "calc.py\npack/other.py"
    assert (await bench.say("read", path="pack/other.py")).endswith("\n3 y = 1")
    await bench.call("delete", path="calc.py")
    assert await bench.say("bash", command="ls ..") == "pack"
    await bench.call("write", path="new/one.py", text="x")
    assert await bench.say("bash", command="cat ../new/one.py; pwd") == "x/work/pack"


@in_loop
async def test_what_an_agent_read_before_a_command_changed_it_is_stale(sandboxes: Sandboxes) -> None:
    bench = await in_a_box(sandboxes)
    await bench.call("read", path="calc.py")
    await bench.call("bash", command="sed -i s/min/max/ calc.py")
    assert "is not what you last read" in await bench.say("replace", path="calc.py", old="max", new="min")


@in_loop
async def test_a_command_that_takes_its_time_goes_on_as_a_job(sandboxes: Sandboxes) -> None:
    bench = await in_a_box(sandboxes)
    asking = await bench.call("bash", command="read -p 'sure? ' x; echo $x > answer", seconds=1)
    assert asking.ok
    assert asking.output.startswith("sure? \n(it goes on as job 1:")
    assert bench.toolbox.jobs == [(1, "read -p 'sure? ' x; echo $x > answer")]
    assert await bench.say("job_input", id=1, text="yes") == "(exit code 0, no output)"
    assert await bench.say("read", path="answer") == "1 yes"
    assert "job 2" in await bench.say("bash", command="sleep 60", seconds=1)
    assert "(exit code" in await bench.say("job_input", id=2, text="^C")
    assert bench.toolbox.jobs == []
    assert await bench.say("job", id=7) == "There is no job 7."
    assert "from 0 to 600" in await bench.say("bash", command="true", seconds=601)


@in_loop
async def test_long_output_is_cut_and_kept_where_commands_can_read_it(sandboxes: Sandboxes) -> None:
    bench = await in_a_box(sandboxes)
    said = await bench.say("bash", command="seq 20000")
    assert len(said) <= 4_000
    assert "lines cut]" in said
    assert said.endswith("(all of it is in /tmp/etude-outputs/1.txt, for commands to read)")
    assert await bench.say("bash", command="sed -n 12345p /tmp/etude-outputs/1.txt") == "12345"
    assert await bench.say("list") == "calc.py\ncheck.py\npack/other.py", "nothing of it is in the workspace"


@in_loop
async def test_without_boxes_there_is_no_terminal() -> None:
    assert await Bench().say("bash", command="ls") == "There is no shell in this workspace."
