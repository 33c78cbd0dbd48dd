"""etude sandbox doctor, attack and fidelity: what this host supports, what its sandboxes withstand, and how they differ
from a login shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from etude.cli.errors import FAILED, first_line

if TYPE_CHECKING:
    from etude.sandbox import Sandboxes
    from etude.sandbox.attacks import Attack, Outcome


def doctor_command(as_json: bool) -> int:
    from etude.sandbox import doctor

    findings = doctor.doctor()
    print(doctor.as_json(findings) if as_json else doctor.report(findings))
    return 0


def fidelity_command() -> int:
    from etude.sandbox import fidelity

    checks, differences = fidelity.fidelity()
    print(fidelity.report(checks, differences))
    return FAILED if any(not difference.check.differs for difference in differences) else 0


def attack_command(races: int, modes: list[str], classes: list[str]) -> int:
    from etude.sandbox import SandboxError
    from etude.sandbox.attacks import ATTACKS, CLASSES, cells, table

    backends = _backends()
    _require_known("--mode", modes, backends)
    _require_known("--class", classes, [each.name for each in CLASSES])
    chosen = [each for each in ATTACKS.values() if not classes or each.of.name in classes]
    found: dict[str, list[Outcome]] = {}
    failed = False
    for name, opened in backends.items():
        if modes and name not in modes:
            continue
        try:
            found[name] = asyncio.run(_attacked(name, opened, chosen, races))
        except SandboxError as error:  # The mode does not start here, although nothing speaks against it.
            print(f"left out: {name}: {first_line(error)}")
            failed |= name in modes
    if not found:
        return FAILED
    for name, outcomes in found.items():
        for outcome in outcomes:
            failed |= bool(outcome.breaches or outcome.undecided)
            for breach in outcome.breaches:
                print(f"{name}: {outcome.attack}: {breach}")
            if outcome.undecided:
                print(f"{name}: {outcome.attack} could not be tried: {outcome.undecided}")
    shown = [each for each in CLASSES if not classes or each.name in classes]
    print(table({name: cells(outcomes) for name, outcomes in found.items()}, shown))
    return FAILED if failed else 0


def _require_known(option: str, names: list[str], known: Iterable[str]) -> None:
    from etude.sandbox import SandboxUnavailable

    if unknown := sorted(set(names) - set(known)):
        raise SandboxUnavailable(f"{option} {unknown[0]!r}: this host has {', '.join(known)}")


def _backends() -> dict[str, Callable[[Path], Sandboxes]]:
    """Return, for each mode that this host has, a function that opens its sandbox backend in a folder. The key is the
    mode's name."""
    from functools import partial

    from etude.sandbox import EmbeddedSandboxes, OciSandboxes, SandboxUnavailable
    from etude.sandbox.embedded.probe import probe_host
    from etude.sandbox.modes import mode_options, open_mode
    from etude.sandbox.oci.endpoint import find_engine

    found: dict[str, Callable[[Path], Sandboxes]] = {}
    with suppress(SandboxUnavailable):
        found[probe_host().mode.value] = EmbeddedSandboxes
    found |= {option.name: partial(open_mode, option.name) for option in mode_options() if option.usable}
    try:
        find_engine()
    except SandboxUnavailable:
        return found
    return {**found, "oci": OciSandboxes}


async def _attacked(name: str, opened: Callable[[Path], Sandboxes], attacks: list[Attack], races: int) -> list[Outcome]:
    from etude.journal import ProgressLine
    from etude.sandbox import temporary_store
    from etude.sandbox.attacks import run_attacks

    with temporary_store("etude-attack-") as folder, ProgressLine(name, len(attacks), unit="attacks") as line:
        sandboxes, done = opened(folder), 0

        def progress(outcome: Outcome) -> None:
            nonlocal done
            done += 1
            line.update(done, note=outcome.attack)

        try:
            return await run_attacks(sandboxes, attacks, races=races, progress=progress)
        finally:
            await sandboxes.close()
