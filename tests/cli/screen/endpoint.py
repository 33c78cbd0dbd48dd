"""Answers of a scripted endpoint for a picture of the screen: it looks at calc.py, mends it, runs the check."""

from __future__ import annotations

from tests.harness.chat_server import completion

THOUGHTS = (
    "The check fails. Before I change anything I want to see what larger does, and what the check asks of it. "
    "Then one small edit, and the check again."
)
SESSION = (
    completion(
        text="I'll look at the **check** and at `calc.py` first.",
        calls=[
            ("todo", {"items": "> find out why check.py fails\n- mend it\n- run the check"}),
            ("bash", {"command": "python check.py"}),
            ("read", {"path": "calc.py"}),
        ],
        reasoning_content=THOUGHTS,
    ),
    completion(
        text="`larger` takes the smaller of the two.",
        calls=[
            ("todo", {"items": "x find out why check.py fails\n> mend it\n- run the check"}),
            ("replace", {"path": "calc.py", "old": "min(a, b)", "new": "max(a, b)"}),
        ],
    ),
    completion(calls=[("bash", {"command": "python check.py && seq 1 30"})]),
    completion(
        text="Mended: `larger` took the **smaller** of the two.\n\n- `calc.py` uses `max` now\n- `check.py` says ok",
        calls=[("todo", {"items": "x find out why check.py fails\nx mend it\nx run the check"})],
    ),
    completion(text="That is all."),
)
