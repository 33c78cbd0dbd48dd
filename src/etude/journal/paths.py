"""The layout of a run's folder, defined only here: all packages take their paths from RunPaths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class _Below:
    """Attribute of RunPaths: the path `name` below the run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: RunPaths, owner: type[RunPaths]) -> Path:
        return paths.root / self._name


@dataclass(frozen=True, slots=True)
class RunPaths:
    root: Path

    recipe = _Below("recipe.toml")
    lineage = _Below("lineage.json")
    lock = _Below("lock")
    tokenizer = _Below("tokenizer.json")
    journal = _Below("journal")
    documents = _Below("documents")
    corpus = _Below("corpus")
    tasks = _Below("tasks")
    demonstrations = _Below("demonstrations")
    weights = _Below("weights")
    sandboxes = _Below("sandboxes")
    """Sandbox images and running sandboxes, which are removed when a stage ends."""
    rl = _Below("rl")
    live = _Below("live")
    """Traces of rollouts in progress."""
    continued = _Below("continued")
    """Rollouts, tasks and demonstrations of the stage `continued`, one subfolder per round."""
    summary = _Below("summary.json")
    report = _Below("report.html")
    plots = _Below("plots")

    def stage(self, name: str) -> Path:
        return self.root / "stages" / name

    def checkpoints(self, stage: str) -> Path:
        return self.stage(stage) / "checkpoints"

    def model(self, stage: str) -> Path:
        """Folder of a finished stage's Hugging Face checkpoint."""
        return self.stage(stage) / "model"

    def metrics(self, stage: str) -> Path:
        return self.stage(stage) / "metrics.jsonl"

    def evaluation(self, name: str) -> Path:
        return self.root / "eval" / name
