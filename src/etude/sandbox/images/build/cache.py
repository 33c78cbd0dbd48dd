"""Steps that were built before: what went in, as a digest, to the layers that came out.

An entry is written when its layers are in the store, at once and under its own name, so that a reader sees all of it or
nothing, whoever else builds or dies. One whose layers are gone counts as absent.
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
        """Of a step on an image's files. The image's settings count only where they are among the facts."""
        text = json.dumps([_FORMAT, below.base, below.layers, facts], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def find(self, key: str) -> Image | None:
        path = self._folder / key
        try:
            image = self._store.image(path.read_text())
            self._store.lease(image).release()  # Which notes that it is used.
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
