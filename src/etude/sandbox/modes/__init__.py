"""Fallback modes for hosts whose kernel lets us make no namespaces. In these modes a box is a folder of the host, and a
fork is a copy of that folder.

Commands are confined by bubblewrap, by Landlock, or not at all. The features of each mode state what it enforces.
"""

from etude.sandbox.modes.folder_backend import FolderSandboxes
from etude.sandbox.modes.mode_choice import MODES, ModeOption, mode_options, open_mode

__all__ = ["MODES", "FolderSandboxes", "ModeOption", "mode_options", "open_mode"]
