"""The layout of a run's folder, defined only here: all packages take their paths from RunPaths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunPaths:
    root: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.toml"

    @property
    def lineage(self) -> Path:
        return self.root / "lineage.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer.json"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def documents(self) -> Path:
        return self.root / "documents"

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    @property
    def demonstrations(self) -> Path:
        return self.root / "demonstrations"

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    @property
    def sandboxes(self) -> Path:
        """Folder for sandbox images and running sandboxes. The sandboxes are removed when a stage ends."""
        return self.root / "sandboxes"

    @property
    def rl(self) -> Path:
        return self.root / "rl"

    @property
    def live(self) -> Path:
        """Folder for the traces of rollouts in progress."""
        return self.root / "live"

    @property
    def continued(self) -> Path:
        """Folder of the stage `continued` (SFT continued in place of RL): rollouts, tasks and demonstrations, one
        subfolder per round."""
        return self.root / "continued"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def plots(self) -> Path:
        return self.root / "plots"

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
