"""Request fields that say who asks. Boxes ask as nobody, so a secret that an agent found opens no door outside.

Only fields are taken out. Words in a path or a query pass, since signed addresses of downloads need theirs.
"""

from __future__ import annotations

CREDENTIAL_FIELDS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "cookie2",
        "api-key",
        "apikey",
        "x-api-key",
        "x-auth-token",
        "x-access-token",
        "x-amz-security-token",
        "x-csrf-token",
        "x-goog-api-key",
        "x-goog-iam-authorization-token",
        "x-github-token",
        "private-token",
        "job-token",
        "deploy-token",
        "npm-otp",
    }
)
