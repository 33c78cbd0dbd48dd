"""Finds the texts that end an answer, while it comes in pieces."""

from __future__ import annotations


class StopTexts:
    """Invariant: what `feed` and `end` return is the text up to the first stop text. The beginning of one is held back
    until it is clear whether it is one."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = tuple(filter(None, texts))
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that is new. Call this no more once a stop text was `found`."""
        if not self._texts:
            return text
        held = self._held + text
        places = [(place, each) for each in self._texts if (place := held.find(each)) >= 0]
        if places:
            place, self.found = min(places, key=lambda found: (found[0], -len(found[1])))
            self._held = ""
            return held[:place]
        kept = max(_begun(held, each) for each in self._texts)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept]

    def end(self) -> str:
        """Return what was held back."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, mark: str) -> int:
    """Return the length of the longest beginning of `mark`, not all of it, with which the text ends."""
    return next(n for n in range(min(len(mark) - 1, len(text)), -1, -1) if text.endswith(mark[:n]))
