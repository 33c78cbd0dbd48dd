"""Takes secrets, and who and where somebody is, out of what leaves the machine.

What counts as a secret is in patterns.toml; a secret that was seen once is taken out wherever it stands."""

from etude.trace.redact.known import Known, known_here
from etude.trace.redact.redactor import Redactor
from etude.trace.redact.traces import redacted

__all__ = ["Known", "Redactor", "known_here", "redacted"]
