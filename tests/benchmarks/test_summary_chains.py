"""A chain of self-summaries, from what was sampled to what is trained on: thirty-odd sessions that need their notes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from _note_taker import PONDERED, Played, Session, play, read_sessions
from tests.harness.parts import compact_format
from tests.text.formats.tiny import Letters

from etude.harness import load_profile
from etude.rl.batch import microbatches, trace_rows
from etude.text import CompactFormat
from etude.text.formats import Qwen3Format
from etude.trace import SegmentKind, StopCause, Trace

PROFILE = replace(load_profile("full"), system="You mend code.")
TOOLS = [schema.openai() for schema in PROFILE.schemas()]
SESSIONS = {session.name: session for session in read_sessions()}
every_session = pytest.mark.parametrize("name", SESSIONS)


@cache
def form_of(name: str) -> CompactFormat | Qwen3Format:
    return compact_format() if name == "compact" else Qwen3Format(Letters(), TOOLS)


def played(session: Session, name: str, *, forgets: bool = False) -> Played:
    form = form_of(name)
    return asyncio.run(play(session, form, form.tokenizer.decode, PROFILE, forgets=forgets))


def test_there_are_sessions_enough_and_each_is_of_its_own_kind() -> None:
    assert len(SESSIONS) >= 30
    assert len({tuple(session.facts.values()) for session in SESSIONS.values()}) == len(SESSIONS)


@pytest.mark.parametrize("form", ["compact", "qwen3"])
@every_session
def test_the_finish_needs_the_notes_and_training_sees_what_was_sampled(name: str, form: str) -> None:
    session = SESSIONS[name]
    done = played(session, form)
    assert (done.outcome.stop, done.ended) == (StopCause.FINISHED, True), done.outcome.error
    assert done.usage.summaries == session.summaries
    assert done.usage.rereads >= session.rereads
    assert done.usage.compression > 1
    assert PONDERED not in done.outcome.conversation.messages[1].text
    _trained_as_sampled(done, session)


@every_session
def test_without_the_notes_it_fails(name: str) -> None:
    done = played(SESSIONS[name], "compact", forgets=True)
    assert not done.ended
    assert done.usage.empty_summaries == done.usage.summaries > 0


def _trained_as_sampled(done: Played, session: Session) -> None:
    trace = Trace("t", "task", "train", "g", 0, "model", 0, segments=done.recorder.segments())
    kinds = [segment.kind for segment in trace.segments]
    assert kinds == [SegmentKind.START] + [SegmentKind.SUMMARY] * session.summaries
    rows = trace_rows(trace, 1.0)
    (batch,) = microbatches(rows, 1 << 24)
    generations = iter(done.engine.generations)
    prompt, generation = next(generations, ([], None))
    sampled: list[int] = []
    for number, row in enumerate(rows):
        mask = np.zeros(len(row.tokens), np.bool_)
        whole: list[int] = []
        while generation is not None and prompt[: len(whole)] == whole:
            # Each prompt is the last one, with all that was sampled behind it, and more.
            whole = [*prompt, *generation.tokens.tolist()]
            mask[len(prompt) : len(whole)] = True
            assert row.logprobs[len(prompt) : len(whole)].tolist() == generation.logprobs.tolist()
            sampled += generation.tokens.tolist()
            prompt, generation = next(generations, ([], None))
        assert row.tokens.tolist() == whole
        assert row.sampled.tolist() == mask.tolist()
        place = batch.rows.index(number)
        assert batch.tokens_bt[place, : len(whole)].tolist() == whole
        assert np.flatnonzero(batch.mask_bt[place]).tolist() == np.flatnonzero(mask).tolist()
    assert generation is None, "every generation is in a row"
    chain = [batch.tokens_bt[batch.rows.index(n)][batch.mask_bt[batch.rows.index(n)]] for n in range(len(rows))]
    assert np.concatenate(chain).tolist() == sampled == [t for _, g in done.engine.generations for t in g.tokens]
