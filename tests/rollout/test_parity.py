"""The agent that trains is the agent that ships: one session through the worker and through a chat, id by id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.harness.parts import ScriptedEngine, compact_format
from tests.text.formats.tiny import merged_file

from etude.engine.protocol import GenerateRequest
from etude.harness import ChatSession, TokenPolicy, TokenSampling, format_of, profile_of, session_schemas
from etude.journal import RunPaths
from etude.recipe import Recipe
from etude.rollout import RolloutJob, RolloutWorker
from etude.sandbox import open_sandboxes
from etude.tasks.oracle import reference_repair
from etude.tasks.task import Split, Task
from etude.text.format import Format
from etude.trace import Segment, SegmentKind, StopCause, TraceBuilder

# Within the task's own limits, which bind a rollout and no chat.
HARNESS = {
    "max_turns": 10,
    "max_tokens": 20_000,
    "max_turn_tokens": 4_000,
    "max_output_tokens": 2_000,
    "max_summary_tokens": 500,
}
Call = tuple[str, dict[str, object]]


def recipe_of(**harness: object) -> Recipe:
    # No model is made: its size is only what the check of the recipe wants.
    return Recipe.model_validate(
        {
            "name": "parity",
            "model": {"max_position_embeddings": 65536},
            "engine": {"context": 65536},
            "harness": {**HARNESS, **harness},
        }
    )


def session(task: Task, shell: str) -> list[list[Call] | str]:
    """Turns: calls alone and in a burst, in a box and in memory, one malformed, one refused."""
    repair = reference_repair(task)
    return [
        [("list", {}), (shell, {"command": "python check.py; echo one >> new.txt"}), ("read", {"path": repair.file})],
        "this is no call that any format reads",
        [("read", {"path": "../outside"}), ("edit", {"path": repair.file, "lines": f"{repair.line} {repair.right}"})],
        [("grep", {"pattern": "def"}), ("read", {"path": "new.txt"}), ("nothing", {})],
        [(shell, {"command": "python check.py; cat new.txt; pwd; id -un; ls"})],
        [("finish", {"message": "done"})],
    ]


class Player:
    """Samples the same turns for whoever asks, and a summary where one is asked for."""

    def __init__(self, form: Format, recipe: Recipe, turns: Sequence[list[Call] | str]) -> None:
        self._form, self._turns = form, list(turns)
        self._asked = form.user_message(profile_of(recipe.harness).summary_request)
        self._schemas = {schema.name: schema.call_schema() for schema in session_schemas(recipe.harness)}
        self.engine = ScriptedEngine(self._write, context=recipe.engine.context)

    def _write(self, request: GenerateRequest) -> list[int]:
        if request.prompt.tolist()[-len(self._asked) :] == self._asked:
            return self._form.render_turn("", "new.txt is mine, the check is next", [])
        turn = self._turns.pop(0)
        if isinstance(turn, str):
            return self._form.render_turn("", "", [turn])
        return self._form.render_turn(
            "Hm.", "I look.", [self._spelled(*call, place) for place, call in enumerate(turn)]
        )

    def _spelled(self, name: str, arguments: dict[str, object], number: int) -> str:
        schema = self._schemas.get(name)
        if schema is None:
            return name
        return self._form.format_call(name, arguments, schema, number)


async def trained(recipe: Recipe, paths: RunPaths, task: Task, player: Player) -> tuple[list[Segment], Any, Any]:
    plain = recipe.model_dump(mode="json", by_alias=True)
    worker = RolloutWorker(str(paths.root), plain, player.engine)
    try:
        subject = await worker._task_cache.get(task.id, Split.TRAIN)
        result = await worker.rollout(RolloutJob(task.id, Split.TRAIN, "g"))
        assert not result.failed_by_us, result.trace.error
        return result.trace.segments, result.trace, subject.files
    finally:
        await worker.close()


async def shipped(
    recipe: Recipe, tokenizer: Path, folder: Path, boxes: Path, instruction: str, player: Player
) -> tuple[list[Segment], ChatSession, StopCause]:
    sandboxes = open_sandboxes(recipe.sandbox, boxes)
    recorder = TraceBuilder()
    form = format_of(recipe.harness, tokenizer)
    sampling = TokenSampling(recipe.engine.context)
    schemas = session_schemas(recipe.harness)
    policy = TokenPolicy(player.engine, form, schemas, sampling, recorder, conversation="chat")
    try:
        async with ChatSession(folder, policy, recipe.harness, recipe.sandbox, sandboxes) as session:
            outcome = await session.run(instruction)
            return recorder.segments(), session, outcome.stop
    finally:
        await sandboxes.close()


def _compact(paths: RunPaths, folder: Path) -> tuple[Recipe, str]:
    compact_format().tokenizer.save(paths.tokenizer)
    return recipe_of(summary_trigger=170), "shell"


def _qwen3(paths: RunPaths, folder: Path) -> tuple[Recipe, str]:
    published = folder / "published"
    published.mkdir()
    (published / "tokenizer.json").write_text(json.dumps(merged_file()))
    harness = {"profile": "full", "format": "qwen3", "tokenizer": str(published), "summary_trigger": 1}
    return recipe_of(**harness), "bash"


@pytest.mark.parametrize("choose", [_compact, _qwen3], ids=["compact", "qwen3 and the full profile"])
def test_training_and_shipping_see_and_sample_the_same_ids(
    choose: Callable[[RunPaths, Path], tuple[Recipe, str]], tmp_path: Path, tasks_folder: Path, train: list[Task]
) -> None:
    task = train[0]
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    paths.tasks.symlink_to(tasks_folder)
    recipe, shell = choose(paths, tmp_path)
    form = format_of(recipe.harness, paths.tokenizer)
    here, there = (Player(form, recipe, session(task, shell)) for _ in range(2))
    segments, trace, files = asyncio.run(trained(recipe, paths, task, here))
    folder = tmp_path / "repository"
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    again, chat, stop = asyncio.run(
        shipped(recipe, paths.tokenizer, folder, tmp_path / "boxes", task.instruction, there)
    )
    assert trace.stop is stop is StopCause.FINISHED
    assert trace.usage.summaries >= 1
    assert trace.usage.invalid_calls == 2
    assert trace.rewrites == 0
    shown = [[form.tokenizer.decode(r.prompt.tolist()) for r in player.engine.requests] for player in (here, there)]
    assert shown[0] == shown[1]
    assert [r.prompt.tolist() for r in here.engine.requests] == [r.prompt.tolist() for r in there.engine.requests]
    assert [segment.kind for segment in again] == [segment.kind for segment in segments]
    assert SegmentKind.SUMMARY in {segment.kind for segment in segments}
    for one, other in zip(segments, again, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.sampled.tolist() == other.sampled.tolist()
    assert chat.conversation is not None
    told = [message["content"] for message in trace.messages if message["role"] == "tool"]
    assert any("one" in text for text in told)
