"""The screen of `etude chat`: what the agent says and does as it happens, what it wants to do, and what it changed.

Needs textual (the extra `chat`)."""

from etude.cli.screen.session import run_screen

__all__ = ["run_screen"]
