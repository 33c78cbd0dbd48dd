"""What every sandbox backend must do.

A backend's test module subclasses SandboxContract and gives a `make` fixture.
"""

from tests.contract.sandbox.background import BackgroundCases
from tests.contract.sandbox.commands import CommandCases
from tests.contract.sandbox.egress import EgressCases
from tests.contract.sandbox.ends import EndCases
from tests.contract.sandbox.escapes import EscapeCases
from tests.contract.sandbox.files import FileCases
from tests.contract.sandbox.forks import ForkCases
from tests.contract.sandbox.isolation import IsolationCases
from tests.contract.sandbox.limits import LimitCases
from tests.contract.sandbox.support import Make
from tests.contract.sandbox.terminals import TerminalCases
from tests.contract.sandbox.trees import TreeCases

__all__ = ["Make", "SandboxContract"]


class SandboxContract(
    CommandCases,
    BackgroundCases,
    TerminalCases,
    LimitCases,
    IsolationCases,
    EscapeCases,
    EgressCases,
    FileCases,
    TreeCases,
    ForkCases,
    EndCases,
):
    pass
