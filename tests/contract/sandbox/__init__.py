"""Contract suite of sandbox backends.

A backend's test module subclasses SandboxContract and provides a `make` fixture. A subclass for a mode that shares most
of its code with another one sets `beyond_core = pytest.mark.soak`: `make test-full` then runs only the cases in CORE,
and `make soak` runs all.
"""

from __future__ import annotations

import pytest
from tests.contract.sandbox.background import BackgroundCases
from tests.contract.sandbox.commands import CommandCases
from tests.contract.sandbox.egress import EgressCases
from tests.contract.sandbox.ends import EndCases
from tests.contract.sandbox.escapes import EscapeCases
from tests.contract.sandbox.files import FileCases
from tests.contract.sandbox.forks import ForkCases
from tests.contract.sandbox.frozen import FrozenCases
from tests.contract.sandbox.limits import LimitCases
from tests.contract.sandbox.neighbours import NeighbourCases
from tests.contract.sandbox.support import Make
from tests.contract.sandbox.terminals import TerminalCases
from tests.contract.sandbox.trees import TreeCases

__all__ = ["CORE", "Make", "SandboxContract"]

CORE = (
    *("exit_codes", "whole_tree", "no_attack", "hosts_files", "no_right_over", "snapshot_and_fork", "second_user"),
    *("full_disk", "concurrent", "children_are_equal", "own_ways", "leads_no_copy", "kernel_table"),
)
"""Parts of test names: one case for each guarantee that a single mode could break."""


class SandboxContract(
    CommandCases,
    BackgroundCases,
    TerminalCases,
    LimitCases,
    NeighbourCases,
    EscapeCases,
    EgressCases,
    FileCases,
    TreeCases,
    ForkCases,
    FrozenCases,
    EndCases,
):
    core = CORE
    beyond_core: pytest.MarkDecorator | None = None
