"""The environment of a task, prepared: the sealed image that every agent and every grading starts from.

Each environment is made once, whoever asks for it, and found again by the next process."""

from __future__ import annotations

from etude.tasks.environment.books import Books, user_cache
from etude.tasks.environment.environments import Environments
from etude.tasks.environment.prepared import Prepared
from etude.tasks.environment.proofs import Proofs

__all__ = ["Books", "Environments", "Prepared", "Proofs", "user_cache"]
