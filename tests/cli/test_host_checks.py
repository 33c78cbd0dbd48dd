"""`etude sandbox attack` shows what the modes withstand that can run, whatever becomes of the others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from etude.cli import host_checks
from etude.sandbox import Sandboxes, SandboxUnavailable
from etude.sandbox.embedded import temporary
from etude.sandbox.modes import open_mode


def broken(folder: Path) -> Sandboxes:
    raise SandboxUnavailable("no namespaces\nin this kernel")


def none_here() -> None:
    raise SandboxUnavailable("no embedded sandboxes")


def test_a_mode_that_does_not_start_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_checks, "_backends", lambda: {"user": broken, "plain": partial(open_mode, "plain")})
    monkeypatch.setattr(temporary, "probe_host", none_here)
    assert host_checks.attack_command(1, [], ["devices"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "left out: user: no namespaces"
    assert lines[2].split(maxsplit=1) == ["devices", "no own_init"]
    assert host_checks.attack_command(1, ["user", "plain"], ["devices"]) == 1, "it was asked for"
    assert host_checks.attack_command(1, ["user"], ["devices"]) == 1
