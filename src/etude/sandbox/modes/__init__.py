"""Fallback modes for hosts on which the embedded backend does not work, since this process may not make namespaces. In
these modes a box is a folder of the host, and a fork is a copy of that folder.

Commands are confined by bubblewrap (which can make namespaces if it is set-uid), by Landlock, or not at all. The
features of each mode state what it enforces.
"""

from etude.sandbox.modes.folder_backend import FolderSandboxes
from etude.sandbox.modes.mode_choice import MODES, ModeOption, mode_options, open_mode

__all__ = ["MODES", "FolderSandboxes", "ModeOption", "mode_options", "open_mode"]
