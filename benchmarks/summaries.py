"""Self-summaries compared with a long compaction prompt: how much each shortens a context, and what is kept.

A scripted note taker plays the sessions of _summary_sessions.toml and must find the facts it needs in its prompt. It is
no model: it notes every fact that it sees, in the form that the instruction asks for. So `facts_kept` shows whether the
harness carries notes over, and `compression` what each of the two instructions costs. The figures named `empty` are for
summaries without text.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from statistics import mean
from typing import Any

from _note_taker import Played, Session, Style, play, read_sessions
from _report import finish

from etude.harness import Profile, load_profile
from etude.harness.context.profile import compaction_request
from etude.text import CompactFormat, Tokenizer


def main() -> None:
    sessions, profile = read_sessions(), load_profile("full")
    long = replace(profile, summary_request=compaction_request())
    said = [text for session in sessions for text in (*session.asks, *session.files.values())]
    form = CompactFormat(Tokenizer.train([*profile.texts(), *long.texts(), *said] * 3, 1024))
    asked = asyncio.run(_played(sessions, form, profile, "self"))
    instructed = asyncio.run(_played(sessions, form, long, "prompt"))
    empty = asyncio.run(_played(sessions, form, profile, "self", forgets=True))
    result = {"sessions": len(sessions), "summaries": sum(played.usage.summaries for played in asked)}
    finish(
        "summaries", {**result, **_figures("self", asked), **_figures("prompt", instructed), **_figures("empty", empty)}
    )


async def _played(
    sessions: list[Session], form: CompactFormat, profile: Profile, style: Style, *, forgets: bool = False
) -> list[Played]:
    decode = form.tokenizer.decode
    return [await play(session, form, decode, profile, forgets=forgets, style=style) for session in sessions]


def _figures(name: str, played: list[Played]) -> dict[str, Any]:
    usages = [one.usage for one in played]
    summaries = sum(usage.summaries for usage in usages)
    return {
        f"{name}_facts_kept": mean(one.ended for one in played),
        f"{name}_compression": sum(u.context_before for u in usages) / sum(u.context_after for u in usages),
        f"{name}_tokens": sum(usage.summary_tokens for usage in usages) / summaries,
        f"{name}_rereads": sum(usage.rereads for usage in usages),
    }


if __name__ == "__main__":
    main()
