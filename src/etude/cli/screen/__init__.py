"""The full-screen interface of `etude chat`: what the agent says and does as it happens, permissions, and its changes.

It needs textual (the extra `chat`)."""

from etude.cli.screen.session import run_screen

__all__ = ["run_screen"]
