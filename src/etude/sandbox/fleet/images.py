"""Records which host has which image, and makes images on other hosts when they are needed.

An image is made on one host. Before another host makes its first box of the image, it makes the image again from the
same source. Layers are named by their content, so both images are the same. A snapshot cannot be made again, so boxes
of a snapshot are placed on the host where it was taken.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from etude.cluster.contract import Remote
from etude.sandbox.fleet.policy import Policy


@dataclass(frozen=True, slots=True)
class ImageCall:
    """The backend call that makes an image, to be repeated on other hosts. Its paths must be the same on all."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(slots=True)
class KnownImage:
    image_call: ImageCall | None
    """The backend call that makes the image; None for a snapshot."""
    local: dict[str, str] = field(default_factory=dict)
    """Hosts that have the image -> its id there, which may differ between hosts with different backends."""
    busy: dict[str, asyncio.Lock] = field(default_factory=dict)
    """Maps a host to the lock that is held while the image is being made there."""


class FleetImages:
    def __init__(self, remotes: dict[str, Remote], policy: Policy) -> None:
        self._remotes, self._policy = remotes, policy
        self._known: dict[str, KnownImage] = {}

    def learn(self, image: str, host: str, image_call: ImageCall | None) -> None:
        """Record that a host has an image, and the call that made it (None for a snapshot)."""
        known = self._known.setdefault(image, KnownImage(image_call))
        known.image_call = known.image_call or image_call
        known.local[host] = image

    def only_host_of(self, image: str) -> str:
        """Return the only host that can make boxes of this image, if the image is a snapshot; empty if any host can."""
        known = self._known.get(image)
        return next(iter(known.local)) if known is not None and known.image_call is None else ""

    async def on_host(self, image: str, host: str) -> str:
        """Return the image's id on the host, where it is made if missing. Unknown images are returned unchanged."""
        known = self._known.get(image)
        if known is None:
            return image
        async with known.busy.setdefault(host, asyncio.Lock()):
            if host not in known.local and known.image_call is not None:
                known.local[host] = await self._remotes[host].call(
                    "make_image", known.image_call, deadline=self._policy.image_seconds
                )
        return known.local.get(host, image)
