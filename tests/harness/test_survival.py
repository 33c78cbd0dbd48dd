"""What a session outlives: commands of every bad kind, a policy that gets nowhere, a dying box, a kill at any turn."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.contract.sandbox.ends import first_process_above
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import FULL, SAMPLE, act, in_a_box, repository, run
from tests.harness.test_sessions import BOX, HARNESS, REQUEST, STEPS, Following, as_it_was
from tests.needs import needs

from etude.harness import Budgets, ChatPolicy, ChatSession, Endpoint, Outcome, Role, ScriptedPolicy, Turn
from etude.harness.context.nudges import REPEATS, SILENCES
from etude.harness.sessions import SessionRecord, load_session
from etude.sandbox import Sandboxes
from etude.trace import StopCause

ROOMY = HARNESS.model_copy(update={"summary_trigger": 0})
REBASE = """
git init -q /tmp/r && cd /tmp/r && git config user.email me@here && git config user.name me
echo 1 > a && git add a && git commit -qm one && echo 2 > a && git commit -qam two && git rebase -i HEAD~1
"""


@needs("less")
@in_loop
async def test_commands_that_wait_for_somebody_hang_nobody(sandboxes: Sandboxes) -> None:
    """Each goes on as a job, and can be answered."""
    bench = await in_a_box(sandboxes)

    async def waits(command: str, prompt: str) -> int:
        said = await bench.say("bash", command=command, seconds=1)
        number = int(said.rpartition("job_input")[0].rpartition("as job ")[2].partition(":")[0])
        for _ in range(20):
            if prompt in said:
                return number
            said += await bench.say("job", id=number, seconds=1)
        raise AssertionError(said)

    async def ends(number: int, *lines: str) -> str:
        heard = [await bench.say("job_input", id=number, text=line) for line in lines]
        for _ in range(20):
            if "(it goes on as job" not in heard[-1]:
                return "\n".join(heard)
            heard.append(await bench.say("job", id=number, seconds=1))
        raise AssertionError(heard)

    python = await waits("python3 -i", ">>> ")
    assert "\n42\n" in "\n" + await ends(python, "print(6 * 7)", "exit()")
    secret = await waits("python3 -c 'import getpass; print(len(getpass.getpass()))'", "Password")
    assert "hunter2" not in (said := await ends(secret, "hunter2"))
    assert "7" in said
    eater = await waits("cat", "")
    assert "echoed" in await ends(eater, "echoed", "^D")
    assert await bench.say("bash", command="read -t 1 x < /dev/null; echo $?") == "1"
    assert await bench.say("bash", command="less calc.py") == SAMPLE["calc.py"].decode().rstrip()
    pages = await waits("seq 999 > /tmp/n; less /tmp/n", "")
    assert "(exit code" in await bench.say("job_kill", id=pages) or not bench.toolbox.jobs
    assert "Successfully rebased" in await bench.say("bash", command=REBASE)
    assert await bench.say("bash", command="$EDITOR calc.py && $GIT_EDITOR calc.py && echo edited") == "edited"
    assert bench.toolbox.jobs == []


@in_loop
async def test_commands_that_never_end_flood_and_daemonise(sandboxes: Sandboxes) -> None:
    bench = await in_a_box(sandboxes)
    flood = await bench.call("bash", command="yes | head -c 3000000; sleep 100", seconds=1)
    assert len(flood.output) <= 4_000
    assert "goes on as job 1" in flood.output
    assert "(exit code" in await bench.say("job_kill", id=1)
    hung = await bench.say("bash", command="trap '' INT TERM; sleep 100", seconds=1)
    assert "goes on as job 2" in hung
    assert "(exit code" in await bench.say("job_kill", id=2)
    daemon = "setsid sleep 100 > /dev/null 2>&1 < /dev/null & echo up"
    assert await bench.say("bash", command=daemon) == "up"
    assert await bench.say("bash", command="printf 'a\\377\\376b\\n\\033[31mred\\033[0m'") == "a\ufffd\ufffdb\nred"
    assert await bench.say("bash", command="ls pack") == "other.py"


def told(outcome: Outcome) -> list[str]:
    return [message.text for message in outcome.conversation.messages[2:] if message.role is Role.USER]


@in_loop
async def test_an_endpoint_that_takes_a_request_and_never_answers() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    policy = ChatPolicy(Endpoint(url, "model", seconds=0.3, attempts=2, pause_seconds=0.0), FULL.schemas())
    outcome = await act(policy, profile=FULL)
    await policy.aclose()
    server.close()
    assert outcome.stop is StopCause.ERROR
    assert "no answer in 2 attempts, last: ReadTimeout" in outcome.error


def test_a_policy_that_says_nothing_is_asked_twice() -> None:
    outcome = run([Turn(), Turn(" \n"), "> read calc.py", Turn(), Turn(), Turn()], profile=FULL)
    assert (outcome.stop, outcome.final_text, outcome.usage.turns) == (StopCause.REPLIED, "", 6)
    assert told(outcome) == [FULL.silent] * 2 * SILENCES
    assert run([Turn()]).stop is StopCause.REPLIED


def test_a_policy_that_repeats_itself_is_told_and_ends_with_its_budget() -> None:
    outcome = run(["> read calc.py"] * 20, Budgets(turns=9), profile=FULL)
    assert (outcome.stop, outcome.usage.turns) == (StopCause.TURNS, 9)
    assert told(outcome) == [FULL.repeated.format(count=count) for count in range(REPEATS, 10, REPEATS)]
    other = ["> read calc.py", "> read check.py"] * 4 + ["> finish"]
    assert told(run(other, profile=FULL)) == []
    assert told(run(["> read calc.py"] * 20, Budgets(turns=9))) == []


@in_loop
async def test_a_box_that_dies_in_the_middle_of_a_call_costs_that_turn_alone(
    tmp_path: Path, sandboxes: Sandboxes
) -> None:
    folder, place = repository(tmp_path / "repository"), tmp_path / "session"
    nap = ["sleep", f"300.{os.getpid()}"]
    steps = ["> edit calc.py 3 return max(a, b)", "> bash ls", f"> bash {' '.join(nap)}"]
    steps += ["> bash python3 check.py", "> read calc.py", "it is done"]
    record = SessionRecord.begin(place, profile="full")
    async with ChatSession(folder, ScriptedPolicy(steps, FULL), ROOMY, BOX, sandboxes, record=record) as session:
        working = asyncio.create_task(session.run(REQUEST))
        (await first_process_above(nap)).kill()
        lost = await working
        assert lost.stop is StopCause.ERROR
        assert lost.error.startswith("SandboxLost: ")
        assert [event.name for event in lost.tools][:2] == ["edit", "bash"]
        saved = load_session(place)
        assert (saved.stop, [event.name for event in saved.tools][:2]) == ("error", ["edit", "bash"])
        assert "+    return max(a, b)" in await session.diff()
        again = await session.run("go on")
        assert again.stop is StopCause.REPLIED
        assert again.tools[0].output == "ok", "another box has the files as they were"


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.harness.test_sessions import BOX, HARNESS, REQUEST, Following
from etude.harness import ChatSession
from etude.harness.sessions import SessionRecord

class UntilKilled(Following):
    async def act(self, conversation, *, max_tokens):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().act(conversation, max_tokens=max_tokens)

folder, places, answers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
for number in range(answers):
    child = os.fork()
    if child == 0:
        policy = UntilKilled()
        policy.left = number
        session = ChatSession(folder, policy, HARNESS, BOX, record=SessionRecord.begin(places / str(number)))
        asyncio.run(session.run(REQUEST))
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


def test_killed_at_any_turn_it_goes_on_to_the_same_end(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")

    def played(session: ChatSession) -> object:
        outcome = asyncio.run(session.resume() if session.interrupted else session.run(REQUEST))
        assert outcome.final_text == "it is done"
        assert outcome.usage.turns == len(STEPS), "budgets go on where they were"
        return as_it_was(session)

    whole = ChatSession(folder, Following(), HARNESS, BOX, record=SessionRecord.begin(tmp_path / "whole"))
    ended = played(whole)
    answers = len(STEPS) + load_session(tmp_path / "whole").usage.summaries
    assert answers > len(STEPS)
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "killed"), str(answers)]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True, env={**os.environ, "PYTHONPATH": "src"})
    for number in range(answers):
        saved = load_session(tmp_path / "killed" / str(number))
        assert saved.stop == ""
        assert played(ChatSession(folder, Following(), HARNESS, BOX, saved=saved)) == ended
