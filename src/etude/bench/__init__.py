"""Benchmarks made from the user's own repository: which base model to begin with.

Three measures that RL changes little: how well a model predicts the repository's code, whether it follows a file
through many changes, and what it knows of what its agents had to look up. Needs no torch.
"""

from etude.bench.asking import Contestant, Prompt, Reply, ask_all
from etude.bench.drafting import WEB_TOOLS, Lookup, draft_questions, lookups_of
from etude.bench.errors import BenchError
from etude.bench.file_versions import Rebuild, rebuilds
from etude.bench.kept import Kept, key_of
from etude.bench.plain_policy import PlainPolicy
from etude.bench.plain_text import EncodingTokenizer, prompt_ids, scored_ids
from etude.bench.questions import Question, chosen, question_prompt, read_questions, write_questions
from etude.bench.repository import Repository, joined_text, read_repository, stretches
from etude.bench.standings import ModelResult, Reading, standings
from etude.bench.state_tracking import rebuild_prompt, unchanged_score
from etude.bench.windows import Window, rolling_windows

__all__ = [
    "WEB_TOOLS",
    "BenchError",
    "Contestant",
    "EncodingTokenizer",
    "Kept",
    "Lookup",
    "ModelResult",
    "PlainPolicy",
    "Prompt",
    "Question",
    "Reading",
    "Rebuild",
    "Reply",
    "Repository",
    "Window",
    "ask_all",
    "chosen",
    "draft_questions",
    "joined_text",
    "key_of",
    "lookups_of",
    "prompt_ids",
    "question_prompt",
    "read_questions",
    "read_repository",
    "rebuild_prompt",
    "rebuilds",
    "rolling_windows",
    "scored_ids",
    "standings",
    "stretches",
    "unchanged_score",
    "write_questions",
]
