"""Runs mini-swe-agent on the harness benchmark's workload; started by `harness.py` in a separate virtual environment.

Standard input is JSON: `task`, `turns` (text, and for each call its command and answer) and the settings of
`_mini_swe.toml`. The last line of standard output is JSON: turns per second of CPU time, by when the trajectory is
written. The agent, the scripted model and the trajectory files are mini-swe-agent's own. Only its environment, which
would start a process per command, is replaced by a class that answers at once. The script is kept out of the model's
settings, since mini-swe-agent writes those out after every step.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = tempfile.mkdtemp(prefix="mini-swe-agent-")

from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicToolcallModel, make_toolcall_output


class Scripted(DeterministicToolcallModel):
    """mini-swe-agent's deterministic model, given one output at a time."""

    def __init__(self, script: list[dict[str, Any]], **settings: Any) -> None:
        super().__init__(outputs=[], **settings)
        self.script = iter(script)

    def query(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        self.config.outputs, self.current_index = [next(self.script)], -1
        try:
            return super().query(messages, **options)
        finally:
            self.config.outputs = []


class Answers:
    """An environment whose commands cost nothing."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = iter(answers)
        self.config = None

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        answer = next(self.answers, None)
        if answer is None:
            done = {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}}
            raise Submitted(done)
        return {"output": answer, "returncode": 0, "exception_info": ""}

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        return more

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"environment": {}, "environment_type": "free"}}}


def main() -> None:
    work = json.load(sys.stdin)
    calls = [[call["command"] for call in turn["calls"]] for turn in work["turns"]] + [["echo done"]]
    texts = [turn["text"] for turn in work["turns"]] + [""]
    answers = [call["answer"] for turn in work["turns"] for call in turn["calls"]]
    settings = work["settings"]
    result = {}
    for written in settings["written"]:
        with tempfile.TemporaryDirectory(dir=work["folder"]) as folder:
            begun = time.process_time()
            for number in range(settings["conversations"]):
                script = [
                    output(place, text, made) for place, (text, made) in enumerate(zip(texts, calls, strict=True))
                ]
                model, path = Scripted(script, **settings["model"]), Path(folder) / f"{number}.traj.json"
                step = {"output_path": path} if written == "step" else {}
                agent = DefaultAgent(model, Answers(answers), **settings["agent"], **step)
                agent.run(work["task"])
                agent.save(path)
                assert agent.n_calls == len(calls), agent.n_calls
            seconds = time.process_time() - begun
        result[written] = settings["conversations"] * len(calls) / seconds
    print(json.dumps(result))


def output(place: int, text: str, commands: list[str]) -> dict[str, Any]:
    names = [f"call_{place}_{number}" for number in range(len(commands))]
    made = [
        {"id": name, "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
        for name, command in zip(names, commands, strict=True)
    ]
    actions = [{"command": command, "tool_call_id": name} for name, command in zip(names, commands, strict=True)]
    return make_toolcall_output(text, made, actions)


if __name__ == "__main__":
    main()
