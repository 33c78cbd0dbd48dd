"""The environment of a task, prepared: the sealed image that every agent and every grading starts from.

Each environment is made once, whoever asks for it, and found again by the next process."""

from __future__ import annotations

from etude.tasks.environment.environments import Environments
from etude.tasks.environment.prepared import Prepared

__all__ = ["Environments", "Prepared"]
