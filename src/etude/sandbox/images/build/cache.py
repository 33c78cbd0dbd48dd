"""The cache of build steps: maps a digest of a step's inputs to the layers that the step made.

An entry is written atomically once its layers are in the store, so readers see all of it or nothing, even if other
processes build or die meanwhile. An entry whose layers have been removed counts as absent.
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
        """Return the cache key of a build step on top of an image's files. `facts` are the step's other inputs, and
        must include those of the image's settings that affect the step."""
        text = json.dumps([_FORMAT, below.base, below.layers, facts], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def find(self, key: str) -> Image | None:
        path = self._folder / key
        try:
            image = self._store.image(path.read_text())
            self._store.lease(image).release()  # A lease marks the image as used.
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
