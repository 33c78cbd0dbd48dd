"""Functions that tests run in a store process: it imports this file, and of Étude only what this file imports."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable
from pathlib import Path

from etude.sandbox.images.image import Image, ImageConfig
from etude.sandbox.images.oci import Layer, Plan, make_image, quiet
from etude.sandbox.images.store import ImageStore
from etude.sandbox.images.store_process import in_store_process


@in_store_process
def whoami(store: ImageStore) -> tuple[int, int, str, str]:
    return os.getuid(), os.getpid(), str(Path.cwd()), os.environ["HOME"]


@in_store_process
def speak(store: ImageStore, count: int, *, say: Callable[[str], None]) -> int:
    for number in range(count):
        say(str(number))
    return count


@in_store_process
def fail(store: ImageStore, error: Exception) -> None:
    raise error


@in_store_process
def stay(store: ImageStore, pipe: Path) -> None:
    """Half-done, until it is ended."""
    half = store.scratch / "half" / "done"
    half.mkdir(parents=True)
    os.chown(half, 7, 7)
    half.parent.chmod(0)
    os.chown(half.parent, 7, 7)
    pipe.write_text(str(os.getpid()))
    time.sleep(600)


@in_store_process
def image_of_tars(store: ImageStore, tars: list[bytes]) -> str:
    diff_ids = [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in tars]
    layers = (Layer(diff_id, lambda data=data: io.BytesIO(data)) for diff_id, data in zip(diff_ids, tars, strict=True))
    return make_image(store, Plan(ImageConfig(), tuple(layers)), "", quiet)


@in_store_process
def record_in_store_process(store: ImageStore, image: Image) -> str:
    return store.record(image)


class Odd(Exception):
    """Cannot be put together again from what it keeps."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@in_store_process
def fail_oddly(store: ImageStore) -> None:
    raise Odd(1, 2)
