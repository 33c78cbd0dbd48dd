"""Defines an image: layers over a base, and the settings for starting commands. The image's id is a digest of all
these."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = "etude-image/2"
HOST = "host"
"""The base of the host's system folders. It differs from host to host, so do not use it for benchmarks."""
EMPTY = "empty"
"""The base of images with their own root file system. It holds only files that such an image may lack."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The settings with which commands start in a box of an image, as a Dockerfile sets them."""

    workdir: str = "/work"
    user: str = "agent"
    """Default user of commands: a user name or number, as in a Dockerfile."""
    env: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    shell: tuple[str, ...] = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class Image:
    base: str
    layers: tuple[str, ...]
    """Names of the image's layers, topmost first."""
    config: ImageConfig = field(default_factory=ImageConfig)

    @property
    def id(self) -> str:
        return hashlib.blake2b(self.to_json().encode(), digest_size=16).hexdigest()

    @property
    def pinned(self) -> bool:
        """Whether boxes of this image are the same on every host. False for the base HOST."""
        return self.base != HOST

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Image:
        """Read the output of to_json. Raises ValueError, KeyError or TypeError for anything else."""
        record: dict[str, Any] = json.loads(text)
        if record.pop("format") != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        config = {key: _frozen(value) for key, value in record.pop("config").items()}
        return cls(record["base"], tuple(record["layers"]), ImageConfig(**config))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
