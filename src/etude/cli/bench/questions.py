"""etude bench questions: drafts questions of fresh knowledge from recorded traces and sessions."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etude.bench import WEB_TOOLS, BenchError, Kept, Lookup, Question, draft_questions, lookups_of, write_questions
from etude.bench.drafting import lookup_prompt
from etude.cli.bench.contestants import unanswered
from etude.cli.bench.find_models import LocalModel, Model, ModelOptions, find_models
from etude.cli.bench.open_models import opened
from etude.cli.trace.find_traces import open_subjects
from etude.cli.visible import visible
from etude.cli.wording import count
from etude.journal import ProgressLine
from etude.trace.redact import Redactor, known_here, redacted

_HEADING = """\
Drafts of questions, by {model}. Edit them: remove what is not worth knowing, correct answers, add spellings.
An answer is right if its last line holds one of `answers` as whole words; with `exact = true`, nothing else.
"""


def questions_command(
    traces: Sequence[str],
    model: str,
    to: Path,
    most: int,
    tools: tuple[str, ...],
    sessions: Path | None,
    options: ModelOptions,
) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if to.suffix != ".toml":
        raise BenchError(f"--to {to}: expected a file that ends in .toml")
    if to.exists():
        raise BenchError(f"{to} is there already, perhaps edited: name a new file")
    (found,) = find_models([model], options)
    every = _distinct(lookups_of(trace, tools) for trace in _traces(traces, sessions))
    if not every:
        named = ", ".join([*WEB_TOOLS, *tools])
        raise BenchError(
            f"no agent looked anything up in {', '.join(traces)}: no call of {named}; name others by --tool"
        )
    places = sorted(random.Random(f"lookups:{options.seed}").sample(range(len(every)), min(most, len(every))))
    lookups = [every[place] for place in places]
    print(f"{count(len(lookups), 'lookup')} of {len(every)} are read by {visible(found.name)}", file=sys.stderr)
    kept = Kept(to.with_name(f".{to.name}.kept.jsonl"))
    with ProgressLine("drafts", len(lookups), unit="lookups") as line:
        drafts, dropped = asyncio.run(_drafts(found, lookups, kept, options, line.update))
    write_questions(to, drafts, _HEADING.format(model=visible(found.name)))
    kept.remove()
    print(f"{to}: {count(len(drafts), 'draft')}{_why(dropped)}")
    return 0


async def _drafts(
    model: Model, lookups: Sequence[Lookup], kept: Kept, options: ModelOptions, progress: Any
) -> tuple[list[Question], Counter[str]]:
    compute = None
    if isinstance(model, LocalModel):
        from etude.cli.bench.run_models import compute_of  # late: endpoints need no torch

        compute = compute_of(options)
    prompts = [lookup_prompt(lookup) for lookup in lookups]
    left = unanswered(model, prompts, options, compute, kept)
    async with opened(model, left, options, compute) as (one, at_once):
        return await draft_questions(one, lookups, kept, at_once, progress)


def _traces(words: Sequence[str], sessions: Path | None) -> Iterator[Any]:
    """Yield the traces without secrets."""
    for word in words:
        for subject in open_subjects(word, (), sessions):
            session = subject.session
            named = [str(session.about["key"])] if session is not None and session.about.get("key") else []
            yield redacted(subject.trace, Redactor(known_here(os.environ, named)))


def _distinct(groups: Iterator[Iterator[Lookup]]) -> list[Lookup]:
    found = {(lookup.call, lookup.output): lookup for group in groups for lookup in group}
    return list(found.values())


def _why(dropped: Counter[str]) -> str:
    return "".join(f"; {number} dropped: {reason}" for reason, number in dropped.most_common())
