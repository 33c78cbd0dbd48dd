"""Starts a Python interpreter that calls one function of this project and imports only the modules that the function
needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

# Stub packages replace the packages above the module, so that their __init__ files import nothing.
_BOOT = """
import importlib, json, sys, types
packages, path, module, function, arguments = json.loads(sys.argv[1])
for name, folder in packages.items():
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [folder]
sys.path[:] = path or sys.path
getattr(importlib.import_module(module), function)(*arguments)
"""


def light_command(module: str, function: str, *arguments: object, path: Sequence[str] = ()) -> list[str]:
    """Return the command that starts a new interpreter and calls `function` of `module` with these JSON values. `path`
    becomes sys.path; if empty, only the standard library and this project can be imported."""
    source, names = Path(__file__).parents[2], module.split(".")
    packages = {".".join(names[:depth]): str(source.joinpath(*names[:depth])) for depth in range(1, len(names))}
    job = json.dumps([packages, list(path), module, function, arguments])
    return [sys.executable, "-S", "-E", "-c", _BOOT, job]
