"""Types for the keyword arguments of Box.exec, Box.start and Sandboxes.build_image, so that backends can pass them on
as one value. contract.py explains the arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Required, TypedDict

from etude.sandbox.contract import NO_EGRESS, Egress, OnOutput, RequestRefused, Terminal


class ExecOptions(TypedDict, total=False):
    timeout: Required[float]
    cwd: str | None
    env: dict[str, str] | None
    stdin: bytes
    user: str
    on_output: OnOutput | None


class StartOptions(TypedDict, total=False):
    timeout: Required[float]
    cwd: str | None
    env: dict[str, str] | None
    user: str
    terminal: Terminal | None


class BuildOptions(TypedDict, total=False):
    dockerfile: Path | None
    target: str
    arguments: dict[str, str] | None
    egress: Egress
    say: Callable[[str], None] | None


@dataclass(frozen=True, slots=True)
class Command:
    """The arguments of Box.exec or Box.start, with the contract's defaults. Raises RequestRefused for an empty command
    or a timeout that is not positive."""

    command: list[str] | str
    _: KW_ONLY
    timeout: float
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: bytes = b""
    user: str = ""
    on_output: OnOutput | None = None
    terminal: Terminal | None = None

    def __post_init__(self) -> None:
        if not self.argv or self.timeout <= 0:
            raise RequestRefused(
                f"a command of at least one word and a positive timeout, not {self.argv!r} in {self.timeout} s"
            )

    @property
    def argv(self) -> list[str]:
        return ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else self.command


@dataclass(frozen=True, slots=True)
class Build:
    """The arguments of Sandboxes.build_image, with the contract's defaults."""

    context: Path
    _: KW_ONLY
    dockerfile: Path | None = None
    target: str = ""
    arguments: dict[str, str] | None = None
    egress: Egress = NO_EGRESS
    say: Callable[[str], None] | None = None
