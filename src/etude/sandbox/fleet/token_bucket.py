"""A token bucket, which limits a rate. The caller passes in the current time.

A caller may take tokens as soon as one is available. It may take more than there are, and leaves a debt that is paid
off as time passes. So over any time span, at most burst + rate * seconds are taken, plus what the last caller took
beyond its first token.
"""

from __future__ import annotations


class TokenBucket:
    """A bucket that gains `rate` tokens per second and holds at most `burst`."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a bucket needs a positive rate and a burst of at least 1, not {rate} and {burst}")
        self._rate, self._burst = rate, float(burst)
        self._tokens, self._at = float(burst), now

    def ready_at(self, now: float) -> float:
        """Return the time from which a token is available; `now` if one is available already."""
        self._fill(now)
        # A tiny tolerance for rounding; without it, the promised time could come and find no whole token.
        return now if self._tokens >= 1.0 - 1e-6 else now + (1.0 - self._tokens) / self._rate

    def take(self, count: int, now: float) -> None:
        """Take `count` tokens. If there are fewer, the bucket goes into debt."""
        self._fill(now)
        self._tokens -= count

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
