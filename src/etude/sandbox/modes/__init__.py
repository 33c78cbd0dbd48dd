"""Fallback modes for hosts whose kernel gives us no namespaces: a box is a folder of the host, a fork a copy of it.

Commands are confined by bubblewrap, by Landlock, or not at all; each mode says so by its features."""

from etude.sandbox.modes.choice import MODES, Prospect, open_mode, prospects
from etude.sandbox.modes.folders import FolderSandboxes

__all__ = ["MODES", "FolderSandboxes", "Prospect", "open_mode", "prospects"]
