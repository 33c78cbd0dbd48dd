"""Keeps a store within its disk budget: removes images, least recently used first, then layers that nothing needs.

Layers that a living box stands on or an import is making are never removed, since leases name them. What was made or
used in the last minutes stays too, since its maker may be about to use it.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.contract import ImageError, RequestRefused
from etude.sandbox.images.keeper import as_keeper
from etude.sandbox.images.owners import locked
from etude.sandbox.images.store import ImageStore

GRACE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Collected:
    images: tuple[str, ...]
    layers: int
    freed_bytes: int
    kept_bytes: int
    """Exceeds the budget only if everything that is left is in use."""


@as_keeper
def collect(store: ImageStore, budget_bytes: int, *, grace_seconds: float = GRACE_SECONDS) -> Collected:
    """Removes images until the store fits the budget, and in any case the layers that nothing needs."""
    with locked(store.root / "lock"):
        store.remove_dead_owners()
    sizes = {path.name: layer_bytes(store, path.name) for path in store.layers.iterdir()}
    with store.fresh("collected") as doomed:
        doomed.mkdir()
        with locked(store.root / "leases"):
            gone, dead, kept = _choose(store, budget_bytes, sizes, time.time() - grace_seconds)
            for name in gone:
                store.forget(name)
            # Layers are moved away under the lock, and deleted after it.
            for layer in dead:
                (store.layers / layer).rename(doomed / layer)
        for layer in dead:
            (store.root / "sizes" / layer).unlink(missing_ok=True)
    return Collected(tuple(gone), len(dead), sum(sizes.get(layer, 0) for layer in dead), kept)


def _choose(store: ImageStore, budget: int, sizes: dict[str, int], young: float) -> tuple[list[str], list[str], int]:
    """Returns the images to remove, the layers to remove, and the bytes of those that stay."""
    there = {path.name: path.lstat().st_ctime for path in store.layers.iterdir()}
    leased = _leased_layers(store)
    safe = leased | {layer for layer, made in there.items() if made > young}
    images = list(store.images())
    needs = {name: _stack(store, name) for name, _ in images}
    users = Counter(layer for stack in needs.values() for layer in stack)

    def kept_bytes() -> int:
        return sum(sizes.get(layer, 0) for layer in there if users[layer] or layer in safe)

    gone = []
    for name, used in images:
        if kept_bytes() <= budget:
            break
        if used <= young and not leased.intersection(needs[name]):
            users.subtract(needs[name])
            gone.append(name)
    return gone, [layer for layer in there if not users[layer] and layer not in safe], kept_bytes()


def layer_bytes(store: ImageStore, layer: str) -> int:
    """Disk use of a layer, measured once, since layers never change."""
    note = store.root / "sizes" / layer
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(note.read_text())
    try:
        count = store.measure([store.layers / layer])
    except FileNotFoundError:
        return 0
    note.parent.mkdir(exist_ok=True)
    store.write(note, str(count))
    return count


def image_bytes(store: ImageStore, name: str) -> int:
    return sum(layer_bytes(store, layer) for layer in _stack(store, name))


def _stack(store: ImageStore, name: str) -> tuple[str, ...]:
    """Layers of an image; none for an image that cannot be used."""
    try:
        return store.stack(store.image(name))
    except (ImageError, RequestRefused):
        return ()


def _leased_layers(store: ImageStore) -> set[str]:
    leased: set[str] = set()
    for record in Path(store.root, "owners").glob("*/leases/*"):
        with contextlib.suppress(FileNotFoundError):  # It was released just now.
            leased.update(record.read_text().split())
    return leased
