"""State tracking: a model is shown a file's first version and the diffs since, and writes the file as it is now.

The score is the share of characters that are wrong, not whether all are right, which one character would decide.
"""

from __future__ import annotations

import re

from etude.bench.asking import Prompt
from etude.bench.distance import share_wrong
from etude.bench.file_versions import Rebuild

SYSTEM = "You follow a file through its changes. Apply every diff in order, exactly."


def rebuild_prompt(item: Rebuild) -> Prompt:
    fence = _fence(item)
    shown = [f"The file `{item.path}`:\n\n{fence}\n{_closed(item.first)}{fence}\n"]
    for number, diff in enumerate(item.diffs, start=1):
        shown.append(f"Change {number} of {len(item.diffs)}:\n\n{fence}diff\n{_closed(diff)}{fence}\n")
    body = "\n".join(shown)
    user = (
        f"{body}\nWrite `{item.path}` as it is after all {len(item.diffs)} changes: the whole file, between two lines "
        f"{fence}, and nothing else."
    )
    plain = f"{body}\nThe file `{item.path}` after all {len(item.diffs)} changes:\n\n{fence}\n"
    return Prompt(SYSTEM, user, plain, _closed(item.final) + fence)


def rebuilt(item: Rebuild, answer: str, *, plain: bool) -> str:
    """Return the file that an answer holds: what stands between its first two fences, or after the only one. A base
    model's answer begins after the fence, and its file ends with the next. An answer without fences is all file."""
    fence = re.escape(_fence(item))
    marks = list(re.finditer(rf"^[ \t]*{fence}[^\n]*$\n?", answer, re.MULTILINE))
    if plain:
        return answer[: marks[0].start()] if marks else answer
    if not marks:
        return answer
    return answer[marks[0].end() : marks[1].start() if len(marks) > 1 else len(answer)]


def score_rebuild(item: Rebuild, file: str) -> dict[str, float | int]:
    """Return the distance in characters, and as a share. Line breaks at the end are not compared, since fences blur
    them."""
    file, final = file.strip("\n"), item.final.strip("\n")
    wrong = share_wrong(file, final)
    return {"characters": round(wrong * max(len(file), len(final), 1)), "wrong": wrong}


def unchanged_score(item: Rebuild) -> float:
    """Return the score of a model that copies the first version."""
    return float(score_rebuild(item, item.first)["wrong"])


def _fence(item: Rebuild) -> str:
    """Return backticks, more than any of the texts has in a row."""
    runs = re.findall(r"`+", "".join((item.first, item.final, *item.diffs)))
    return "`" * max(4, 1 + max(map(len, runs), default=0))


def _closed(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"
