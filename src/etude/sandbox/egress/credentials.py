"""Recognizes HTTP request fields that carry credentials. The proxy removes them, so that an agent cannot use a secret
that it has found.

The fields are recognized by words in their names, since every service has its own name for its token. Paths and queries
are left alone, since signed download URLs carry such words.
"""

from __future__ import annotations

import re

# An idempotency key only distinguishes requests. It is not a credential.
_WORDS = re.compile(
    r"auth|cookie|token|secret|session|credential|signature|passw|api-?key|(?<!idempotency-)key$|-otp$|jwt|dpop|-art-api$"
)


def carries_credentials(field: str) -> bool:
    """Whether a request field carries credentials, judged by its name in lower case."""
    return _WORDS.search(field) is not None
