"""A token bucket with time passed in. A taker needs one whole token, and may leave a debt that later time pays: so in
any span no more is taken than burst + rate * seconds + what the last taker was over."""

from __future__ import annotations


class TokenBucket:
    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a bucket needs a positive rate and a burst of at least 1, not {rate} and {burst}")
        self._rate, self._burst = rate, float(burst)
        self._tokens, self._at = float(burst), now

    def ready_at(self, now: float) -> float:
        """The moment from which a token is there; not after `now` if it is there already."""
        self._fill(now)
        # A whole token less what rounding may have lost, else the moment promised would come and find none.
        return now if self._tokens >= 1.0 - 1e-6 else now + (1.0 - self._tokens) / self._rate

    def take(self, count: int, now: float) -> None:
        self._fill(now)
        self._tokens -= count

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
