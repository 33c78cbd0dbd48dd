"""Chooses a host's mode: the embedded backend if it works, else the best fallback, never a worse one silently.

`auto` takes only modes that isolate code. Landlock alone and a plain subprocess must be asked for by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.contract import Feature, Sandboxes, SandboxUnavailable
from etude.sandbox.embedded import EmbeddedSandboxes
from etude.sandbox.modes.folders import FolderSandboxes
from etude.sandbox.modes.walls import Bubblewrap, Landlock, Plain, Walls

MODES: dict[str, type[Walls]] = {"bubblewrap": Bubblewrap, "landlock": Landlock, "plain": Plain}
"""Best first."""


@dataclass(frozen=True, slots=True)
class Prospect:
    name: str
    usable: bool
    isolates: bool
    text: str


def prospects() -> list[Prospect]:
    found = []
    for name, kind in MODES.items():
        walls = kind()
        refusal = walls.refusal()
        found.append(Prospect(name, not refusal, Feature.ISOLATED in walls.features, refusal or walls.text))
    return found


def open_mode(mode: str, root: Path) -> Sandboxes:
    """SandboxUnavailable says why the mode does not work here, or for `auto` why no mode that isolates does."""
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


def _open_folders(walls: Walls, root: Path) -> FolderSandboxes:
    if refusal := walls.refusal():
        raise SandboxUnavailable(f"sandbox.mode={walls.name}: {refusal}")
    return FolderSandboxes(root, walls)
