"""etude sandbox doctor."""

from __future__ import annotations

from etude.sandbox.doctor import report


def doctor_command() -> int:
    print(report())
    return 0
