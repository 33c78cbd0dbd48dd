"""The built-in tools: one schema (a data file) and one small function each."""

from etude.harness.tools.files import edit, list_files, read
from etude.harness.tools.finish import finish
from etude.harness.tools.grep import grep
from etude.harness.tools.shell import shell

BUILTIN = {"list": list_files, "read": read, "edit": edit, "grep": grep, "shell": shell, "finish": finish}

__all__ = ["BUILTIN", "edit", "finish", "grep", "list_files", "read", "shell"]
