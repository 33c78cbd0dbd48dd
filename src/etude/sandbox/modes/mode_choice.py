"""Chooses the sandbox mode of a host: the embedded backend if it works, or else the best fallback mode that isolates
code.

`auto` never picks a mode that does not isolate. Landlock alone and a plain subprocess must be requested by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.contract import Feature, Sandboxes, SandboxUnavailable
from etude.sandbox.embedded import EmbeddedSandboxes
from etude.sandbox.modes.confinement import Bubblewrap, Confinement, Landlock, Plain
from etude.sandbox.modes.folder_backend import FolderSandboxes

MODES: dict[str, type[Confinement]] = {"bubblewrap": Bubblewrap, "landlock": Landlock, "plain": Plain}
"""The fallback modes by name, best first."""


@dataclass(frozen=True, slots=True)
class ModeOption:
    name: str
    usable: bool
    isolates: bool
    """Whether the mode keeps commands from the host's files and processes."""
    text: str
    """What the mode enforces, or why it does not work on this host."""


def mode_options() -> list[ModeOption]:
    found = []
    for name, kind in MODES.items():
        confinement = kind()
        refusal = confinement.refusal()
        found.append(
            ModeOption(name, not refusal, Feature.ISOLATED in confinement.features, refusal or confinement.text)
        )
    return found


def open_mode(mode: str, root: Path) -> Sandboxes:
    """Open "auto", "embedded" or a mode of MODES. Raise SandboxUnavailable, with the reason, if the mode does not work
    on this host, or for "auto", if no isolating mode does."""
    if mode == "embedded":
        return EmbeddedSandboxes(root)
    if mode in MODES:
        return _open_folders(MODES[mode](), root)
    try:
        return EmbeddedSandboxes(root)
    except SandboxUnavailable as error:
        for kind in MODES.values():
            if Feature.ISOLATED in kind.features and not kind().refusal():
                return _open_folders(kind(), root)
        raise SandboxUnavailable(f"{error}; nothing else here keeps code in, see `etude sandbox doctor`") from error


def _open_folders(confinement: Confinement, root: Path) -> FolderSandboxes:
    if refusal := confinement.refusal():
        raise SandboxUnavailable(f"sandbox.mode={confinement.name}: {refusal}")
    return FolderSandboxes(root, confinement)
