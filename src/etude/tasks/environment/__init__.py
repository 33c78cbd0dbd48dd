"""Prepares a task's environment: the sealed image that every agent and every grading starts from.

Each environment is prepared once, however many callers ask for it, and later processes reuse it.
"""

from __future__ import annotations

from etude.tasks.environment.environments import Environments
from etude.tasks.environment.host_index import HostIndexes, user_cache
from etude.tasks.environment.prepared import Prepared
from etude.tasks.environment.stored_facts import Proofs

__all__ = ["Environments", "HostIndexes", "Prepared", "Proofs", "user_cache"]
