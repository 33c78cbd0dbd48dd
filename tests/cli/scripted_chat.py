"""`etude chat` with turns from a script in place of a model: scripted_chat.py FOLDER TASK yes|ask STEP..."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from etude.cli.agent_setup import Front, Where
from etude.cli.chat import converse
from etude.cli.errors import exit_code
from etude.harness import Policy, ScriptedPolicy, load_profile
from etude.recipe import Recipe


def main(folder: str, task: str, yes: str, *steps: str) -> int:
    # A command may take longer than any test waits: what ends it early is the test.
    sections = {"harness": {"summary_trigger": 0}, "sandbox": {"command_seconds": 600.0}}
    recipe = Recipe.model_validate({"name": "scripted", **sections})

    def open_policy(stack: AsyncExitStack) -> Policy:
        return ScriptedPolicy(steps, load_profile("compact"))

    def chat() -> int:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        front = Front("scripted", recipe.harness, recipe.sandbox, open_policy)
        asyncio.run(converse(front, task, Where(Path(folder)), yes=yes == "yes"))
        return 0

    return exit_code(chat, when_interrupted="interrupted")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
