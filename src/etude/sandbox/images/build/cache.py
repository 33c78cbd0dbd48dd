"""The cache of build steps: from a digest of what went into a step to the layers that came out.

An entry is written once its layers are in the store, atomically and under its own name. So readers see all of it or
nothing, whoever else builds or dies. An entry whose layers are gone counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

from etude.sandbox.contract import ImageError, RequestRefused
from etude.sandbox.images.image import Image
from etude.sandbox.images.store import ImageStore

_FORMAT = 1


class BuildCache:
    def __init__(self, store: ImageStore) -> None:
        self._store, self._folder = store, store.root / "builds"
        self._folder.mkdir(exist_ok=True)

    def key(self, below: Image, **facts: Any) -> str:
        """The key of a step on top of an image's files. The image's settings count only if they are among the facts."""
        text = json.dumps([_FORMAT, below.base, below.layers, facts], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def find(self, key: str) -> Image | None:
        path = self._folder / key
        try:
            image = self._store.image(path.read_text())
            self._store.lease(image).release()  # Leasing marks the image as used.
            return image
        except FileNotFoundError:
            return None
        except (ImageError, RequestRefused, UnicodeDecodeError):
            path.unlink(missing_ok=True)
            return None

    def keep(self, key: str, image: str) -> None:
        fresh = self._store.scratch / f"build-{secrets.token_hex(8)}"
        fresh.write_text(image)
        fresh.rename(self._folder / key)
