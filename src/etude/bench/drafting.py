"""Drafts questions of fresh knowledge from traces in which an agent had to look something up.

A lookup is a call that searched or read the web, or read the source of an installed library. A model drafts one
question from each. A draft is dropped unless its answer occurs in what was looked up and not in the question; whether
it is worth asking is for the user to say.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from etude.bench.asking import Contestant, Prompt, ask_all
from etude.bench.kept import Kept
from etude.bench.questions import LONGEST_LINE, Question, folded
from etude.trace import Trace

WEB_TOOLS = ("web_search", "web_fetch")
_LIBRARIES = re.compile(r"site-packages|dist-packages|node_modules|\.cargo/registry|/pkg/mod/|/lib/python3")
_SHOWN, _REQUEST = 6000, 1000
"""Characters of a lookup's output, and of the user's request, that the model reads."""
_SHORTEST = 20
_MOST_ANSWERS = 5
_SYSTEM = "You write quiz questions about software, for people who must answer from memory."
_WANTED = (
    "Write one question whose answer is a short fact in the text above: a name, a number, an option, a version. It "
    "must make sense to somebody who has not seen the text, have a single answer, and not contain it. Reply with JSON "
    'and nothing else: {"question": "...", "answers": ["...", "another spelling of the same answer"]}. If the text '
    'holds no such fact, reply with {"question": "", "answers": []}.'
)


@dataclass(frozen=True, slots=True)
class Lookup:
    request: str
    """What the user had asked the agent for."""
    call: str
    output: str
    source: str


def lookups_of(trace: Trace, also: Collection[str] = ()) -> Iterator[Lookup]:
    """Yield what the agent looked up: calls of WEB_TOOLS and of tools in `also`, and calls on libraries' sources."""
    request = next((str(m.get("content") or "") for m in trace.messages if m.get("role") == "user"), trace.task)
    for event in trace.tools:
        wanted = event.name in WEB_TOOLS or event.name in also or _LIBRARIES.search(event.arguments) is not None
        if wanted and event.ok and len(event.output.strip()) >= _SHORTEST:
            call = " ".join(f"{event.name} {event.arguments}".split())[:LONGEST_LINE]
            yield Lookup(request[:_REQUEST], call, event.output[:_SHOWN], f"{trace.id}: {call}")


async def draft_questions(
    one: Contestant,
    lookups: Sequence[Lookup],
    kept: Kept,
    at_once: int,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[Question], Counter[str]]:
    """Return the drafts, and how many lookups gave none, by reason."""
    replies = await ask_all(one, [lookup_prompt(lookup) for lookup in lookups], kept, at_once, progress)
    drafts: dict[str, Question] = {}
    dropped: Counter[str] = Counter()
    for lookup, reply in zip(lookups, replies, strict=True):
        answer = None if reply is None else ("{" + reply.text if one.plain else reply.text)
        found = "the model did not answer" if answer is None else _draft(answer, lookup)
        if isinstance(found, str):
            dropped[found] += 1
        elif folded(found.question) in drafts:
            dropped["asked twice"] += 1
        else:
            drafts[folded(found.question)] = found
    return list(drafts.values()), dropped


def lookup_prompt(lookup: Lookup) -> Prompt:
    shown = (
        f"An agent was asked:\n\n{lookup.request}\n\nIt looked this up: {lookup.call}\n\n{lookup.output}\n\n{_WANTED}"
    )
    return Prompt(_SYSTEM, shown, f"{shown}\n\nReply: {{", "a question of one or two sentences, and its answers " * 6)


def _draft(answer: str, lookup: Lookup) -> Question | str:
    """Return the question of a reply, or why there is none."""
    values = _json_of(answer)
    question, answers = values.get("question"), values.get("answers")
    if not isinstance(question, str) or not isinstance(answers, list):
        return "not a question in JSON"
    question = " ".join(question.split())
    accepted = [" ".join(one.split()) for one in answers if isinstance(one, str) and folded(one)][:_MOST_ANSWERS]
    if not question or not accepted:
        return "nothing to ask"
    if any(len(one) > LONGEST_LINE for one in accepted):
        return "the answer is too long"
    if not any(folded(one) in folded(lookup.output) for one in accepted):
        return "the answer is not in what was looked up"
    if any(folded(one) in folded(question) for one in accepted):
        return "the question gives the answer away"
    return Question(question, tuple(accepted), source=lookup.source)


def _json_of(answer: str) -> dict[str, object]:
    """Return the first JSON object of a text that has a question; an empty one if there is none."""
    decoder = json.JSONDecoder()
    for place in (found.start() for found in re.finditer(r"\{", answer[: 4 * _SHOWN])):
        try:
            values, _ = decoder.raw_decode(answer, place)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and "question" in values:
            return values
    return {}
