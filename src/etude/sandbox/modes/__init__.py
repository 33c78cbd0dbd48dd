"""Lesser modes, for hosts whose kernel gives us no namespaces: a box is a folder of the host, a fork is a copy of it.

What keeps its commands in is bubblewrap, Landlock, or nothing at all; each says so by its features."""

from etude.sandbox.modes.choice import MODES, Prospect, open_mode, prospects
from etude.sandbox.modes.folders import FolderSandboxes

__all__ = ["MODES", "FolderSandboxes", "Prospect", "open_mode", "prospects"]
