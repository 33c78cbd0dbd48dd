"""Redaction of exported traces: removes secrets, and names of the user, home folder and host.

patterns.toml defines what a secret looks like. A distinctive secret, once found, is removed everywhere.
"""

from etude.trace.redact.known import Known, known_here
from etude.trace.redact.redactor import Redactor
from etude.trace.redact.traces import redacted

__all__ = ["Known", "Redactor", "known_here", "redacted"]
