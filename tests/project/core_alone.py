"""What must work without torch, ray, transformers and matplotlib; run by the Python of an environment that has none.

Harness in a real box, one task made and graded, the numbers of an evaluation. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

from etude.harness import (
    WORKDIR,
    Budgets,
    ChatSession,
    OverlayWorkspace,
    ScriptedPolicy,
    Toolbox,
    ToolLimits,
    builtin_schema,
    load_profile,
    run_agent,
    write_sample,
)
from etude.journal import Journal
from etude.recipe.acting import EvaluationRecipe, HarnessRecipe, SandboxRecipe
from etude.rollout import GatedSandboxes, RolloutSetup, evaluate, run_rollout, subject_of
from etude.sandbox import open_sandboxes
from etude.tasks import Grader, OraclePolicy, Split, make_tasks, open_source

ABSENT = ("torch", "ray", "transformers", "matplotlib", "safetensors", "obstore")


async def main(folder: Path) -> dict[str, object]:
    found = {"present": [name for name in ABSENT if importlib.util.find_spec(name)]}
    harness, sandbox = HarnessRecipe(summary_trigger=0), SandboxRecipe()
    sandboxes = GatedSandboxes(open_sandboxes(sandbox, folder / "boxes"), 2)
    try:
        sample = write_sample(folder / "sample")
        profile = load_profile("compact")
        policy = ScriptedPolicy(["> shell python3 check.py", "> finish"], profile)
        async with ChatSession(sample, policy, harness, sandbox, sandboxes) as session:
            await session.run("look at the check")
            said = [message.text for message in session.conversation.messages]  # type: ignore[union-attr]
        found["check_said"] = next(text for text in said if "FAIL" in text)

        toolbox = Toolbox(profile.schemas(), OverlayWorkspace({"a.py": b"x = 1\n"}), ToolLimits(), profile)
        playing = ScriptedPolicy(["> edit a.py 1 x = 2", "> finish"], profile)
        outcome = await run_agent(profile.open("change it", "plain"), playing, toolbox, Budgets(), profile)
        found["stop"] = outcome.stop
        found["tools"] = [builtin_schema(name).name for name in ("read", "edit", "grep", "shell", "list", "finish")]
        found["full"] = len(load_profile("full").schemas())

        grader = Grader(sandboxes)
        setup = RolloutSetup(sandboxes, grader, harness, sandbox, grader.environments)
        tasks = make_tasks(open_source("microrepo"), Split.TRAIN, 1, 1, folder / "tasks")
        subject = await subject_of(tasks[0], setup.environments)

        async def rollout(job):  # type: ignore[no-untyped-def]
            return await run_rollout(job, subject, lambda job, task, recorder: OraclePolicy(task, job.seed), setup)

        journal = Journal(folder / "journal", "test")
        recipe = EvaluationRecipe(samples=2, greedy=True)
        evaluation = await evaluate(
            tasks, rollout, recipe, folder / "eval", name="core", split=Split.TRAIN, seed=1, journal=journal
        )
        journal.close()
        found["pass1"] = evaluation.summary.pass1.mean if evaluation.summary.pass1 else None
        found["written"] = json.loads((folder / "eval" / "summary.json").read_text())["samples"]
        found["workdir"] = WORKDIR
    finally:
        await sandboxes.close()
    found["loaded"] = [name for name in ABSENT if name in sys.modules]
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
