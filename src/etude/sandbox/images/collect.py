"""Keeps an image store within its disk budget: removes images, least recently used first, and then the layers that no
image needs.

A layer is never removed while it has a lease, which means that a box uses the layer or an import is making it. Images
that were used, and layers that were made, in the last minutes stay too, since a process may be about to use them.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.contract import ImageError, RequestRefused
from etude.sandbox.images.owners import locked
from etude.sandbox.images.store import ImageStore
from etude.sandbox.images.store_process import in_store_process

GRACE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of a collection. `layers` is the number of removed layers."""

    images: tuple[str, ...]
    layers: int
    freed_bytes: int
    kept_bytes: int
    """Bytes of the layers that stay. They exceed the budget only if all that remains is in use or recent."""


@in_store_process
def collect(store: ImageStore, budget_bytes: int, *, grace_seconds: float = GRACE_SECONDS) -> Collected:
    """Remove images, least recently used first, until the store fits the budget; then every layer that no image needs.
    Images used and layers made within the last `grace_seconds` stay. So do layers with a lease (a box uses them, or an
    import makes them), and images with such a layer."""
    with locked(store.root / "lock"):
        store.remove_dead_owners()
    sizes = {path.name: layer_bytes(store, path.name) for path in store.layers.iterdir()}
    with store.fresh("collected") as trash:
        trash.mkdir()
        with locked(store.root / "leases"):
            removed_images, removed_layers, kept = _choose(store, budget_bytes, sizes, time.time() - grace_seconds)
            for name in removed_images:
                store.forget(name)
            # Layers are moved out of the store under the lock, and deleted after its release.
            for layer in removed_layers:
                (store.layers / layer).rename(trash / layer)
        for layer in removed_layers:
            (store.root / "sizes" / layer).unlink(missing_ok=True)
    return Collected(
        tuple(removed_images), len(removed_layers), sum(sizes.get(layer, 0) for layer in removed_layers), kept
    )


def _choose(store: ImageStore, budget: int, sizes: dict[str, int], recent: float) -> tuple[list[str], list[str], int]:
    """Return the images to remove, the layers to remove, and the bytes of the layers that stay."""
    existing = {path.name: path.lstat().st_ctime for path in store.layers.iterdir()}
    leased = _leased_layers(store)
    in_use = leased | {layer for layer, made in existing.items() if made > recent}
    images = list(store.images())
    needs = {name: _stack(store, name) for name, _ in images}
    users = Counter(layer for stack in needs.values() for layer in stack)

    def kept_bytes() -> int:
        return sum(sizes.get(layer, 0) for layer in existing if users[layer] or layer in in_use)

    removed_images = []
    for name, used in images:
        if kept_bytes() <= budget:
            break
        if used <= recent and not leased.intersection(needs[name]):
            users.subtract(needs[name])
            removed_images.append(name)
    return removed_images, [layer for layer in existing if not users[layer] and layer not in in_use], kept_bytes()


def layer_bytes(store: ImageStore, layer: str) -> int:
    """Return the disk use of a layer in bytes. It is measured once and recorded, since layers never change."""
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
    """Return the names of an image's layers, or () if the image is missing or damaged."""
    try:
        return store.stack(store.image(name))
    except (ImageError, RequestRefused):
        return ()


def _leased_layers(store: ImageStore) -> set[str]:
    leased: set[str] = set()
    for record in Path(store.root, "owners").glob("*/leases/*"):
        with contextlib.suppress(FileNotFoundError):  # The lease was released meanwhile.
            leased.update(record.read_text().split())
    return leased
