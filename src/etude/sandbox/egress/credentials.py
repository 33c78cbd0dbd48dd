"""Request fields that say who asks. Boxes ask as nobody, so a secret that an agent found opens no door outside.

They are known by the words in their names, since every service has a name of its own for its token. Only fields are
taken out: words in a path or a query pass, since signed addresses of downloads need theirs.
"""

from __future__ import annotations

import re

# A key that only tells one request from another says nothing about who asks.
_WORDS = re.compile(
    r"auth|cookie|token|secret|session|credential|signature|passw|api-?key|(?<!idempotency-)key$|-otp$|jwt|dpop|-art-api$"
)


def tells_who_asks(field: str) -> bool:
    """Of a field's name in small letters."""
    return _WORDS.search(field) is not None
