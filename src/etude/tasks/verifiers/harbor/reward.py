"""Parses the reward that a Harbor task's test.sh writes to reward.json or reward.txt. The contents are not trusted,
since any code in the box may have written them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from etude.tasks.verifiers.untrusted_json import parse_untrusted

LARGEST = 64 << 10
"""Largest reward file, in bytes."""


class BadReward(Exception):
    """Raised if test.sh wrote no valid reward. The message says why."""


def parse_reward(as_json: bytes | None, as_text: bytes | None) -> dict[str, float]:
    """Return all numbers of reward.json, or else of reward.txt, by name; the score has the name `reward`. None stands
    for a missing file. Raises BadReward if there is no score, or if a number is not finite."""
    if as_json is not None:
        return _of_json(_bounded(as_json, "reward.json"))
    if as_text is None:
        raise BadReward("test.sh wrote neither reward.json nor reward.txt")
    text = _bounded(as_text, "reward.txt").decode("utf-8", "replace").strip()
    try:
        number = float(text)
    except ValueError:
        raise BadReward(f"reward.txt: expected a number, found {text[:40]!r}") from None
    return _reward({"reward": number}, "reward.txt")


def _of_json(data: bytes) -> dict[str, float]:
    try:
        found = parse_untrusted(data, LARGEST)
    except ValueError:
        raise BadReward("reward.json: expected JSON") from None
    if not isinstance(found, dict):
        found = {"reward": found}
    if "reward" not in found:
        raise BadReward("reward.json: expected a number, or an object with the key reward")
    return _reward(found, "reward.json")


def _reward(found: Mapping[str, object], name: str) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for key, value in found.items():
        if isinstance(value, int | float):  # JSON's true and false count as 1 and 0, as in Harbor.
            try:
                metrics[key] = float(value)
            except OverflowError:
                metrics[key] = math.inf
        elif key == "reward":
            shown = f"{value[:40]!r}" if isinstance(value, str) else type(value).__name__
            raise BadReward(f"{name}: {key}: expected a number, found {shown}")
    if odd := [key for key, value in metrics.items() if not math.isfinite(value)]:
        raise BadReward(f"{name}: {odd[0][:40]}: expected a finite number")
    return metrics


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > LARGEST:
        raise BadReward(f"{name}: expected at most {LARGEST} bytes, found {len(data)}")
    return data
