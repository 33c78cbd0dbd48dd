"""The built-in tools. Each consists of a schema (a data file) and a small function."""

from etude.harness.tools.ask_and_web import ask, web_fetch, web_search
from etude.harness.tools.change import delete, move, patch, replace, write
from etude.harness.tools.files import edit, list_files, read
from etude.harness.tools.finish import finish
from etude.harness.tools.glob import glob
from etude.harness.tools.grep import grep
from etude.harness.tools.lints import lints
from etude.harness.tools.search import search
from etude.harness.tools.shell import shell
from etude.harness.tools.terminal import bash, job, job_input, job_kill
from etude.harness.tools.todo import todo

BUILTIN = {
    "list": list_files,
    "read": read,
    "edit": edit,
    "write": write,
    "replace": replace,
    "patch": patch,
    "move": move,
    "delete": delete,
    "grep": grep,
    "glob": glob,
    "lints": lints,
    "search": search,
    "shell": shell,
    "bash": bash,
    "job": job,
    "job_input": job_input,
    "job_kill": job_kill,
    "todo": todo,
    "ask": ask,
    "web_search": web_search,
    "web_fetch": web_fetch,
    "finish": finish,
}

__all__ = ["BUILTIN"]
