"""Recognizes request fields that say who is asking: a secret found by an agent opens no door outside.

Such fields are recognized by words in their names, since every service has its own name for its token. Only fields are
removed; words in a path or query pass, since signed download URLs need theirs.
"""

from __future__ import annotations

import re

# An idempotency key only tells requests apart; it says nothing about who asks.
_WORDS = re.compile(
    r"auth|cookie|token|secret|session|credential|signature|passw|api-?key|(?<!idempotency-)key$|-otp$|jwt|dpop|-art-api$"
)


def tells_who_asks(field: str) -> bool:
    """Whether a request field carries credentials, judged by its name in lower case."""
    return _WORDS.search(field) is not None
