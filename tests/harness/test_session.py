from __future__ import annotations

import asyncio

import pytest
from tests.harness.parts import open_boxes

from etude.harness import ApplyConflict, ChatSession, ScriptedPolicy, load_profile, write_sample
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.trace import StopCause

HARNESS = HarnessRecipe.model_validate({"summary_trigger": 0})
PROFILE = load_profile("compact")


def session(folder, steps, sandboxes=None) -> ChatSession:
    policy = ScriptedPolicy(steps, PROFILE)
    return ChatSession(folder, policy, HARNESS, SandboxRecipe.model_validate({}), sandboxes)


def test_the_sample_repository_fails_its_check_until_the_agent_mends_it(tmp_path, images):
    folder = write_sample(tmp_path / "sample")
    assert sorted(path.name for path in folder.iterdir()) == ["calc.py", "check.py", "greet.py"]

    async def main() -> None:
        sandboxes = open_boxes(images)
        steps = ["> shell python check.py", "> edit calc.py 8 return max(a, b)", "> shell python check.py", "> finish"]
        async with session(folder, steps, sandboxes) as chat:
            outcome = await chat.run("make check pass")
            assert outcome.stop is StopCause.FINISHED
            assert outcome.tools[0].output == "FAIL larger(2, 7) is 2 not 7\nexit 1"
            assert outcome.tools[2].output == "ok"
            assert "+    return max(a, b)" in await chat.diff()
            assert "min" in (folder / "calc.py").read_text()
            assert await chat.apply() == ["calc.py"]
            assert "max" in (folder / "calc.py").read_text()
            assert await chat.diff() == ""
        await sandboxes.close()

    asyncio.run(main())


def test_a_second_request_goes_on_in_the_same_conversation(tmp_path):
    folder = write_sample(tmp_path)

    async def main() -> None:
        async with session(folder, ["hello", "> edit greet.py 1 # a greeting", "done"]) as chat:
            await chat.run("hi")
            outcome = await chat.run("shorten the comment in greet.py")
            assert [m.text for m in outcome.conversation.messages if m.role == "user"] == [
                "hi",
                "shorten the comment in greet.py",
            ]
            assert (outcome.usage.turns, outcome.conversation.task) == (2, "shorten the comment in greet.py")
            (folder / "greet.py").chmod(0o755)
            await chat.apply()
            assert (folder / "greet.py").stat().st_mode & 0o777 == 0o755
            assert sorted(path.name for path in folder.iterdir()) == ["calc.py", "check.py", "greet.py"]

    asyncio.run(main())


def test_nothing_is_written_over_what_changed_meanwhile(tmp_path):
    folder = write_sample(tmp_path)

    async def main() -> None:
        async with session(folder, ["> edit greet.py 1 x\n> edit calc.py 1 y", "done"]) as chat:
            await chat.run("change both")
            (folder / "greet.py").write_text("mine\n")
            with pytest.raises(ApplyConflict, match=r"greet\.py"):
                await chat.apply()
            assert "# add" in (folder / "calc.py").read_text()

    asyncio.run(main())
