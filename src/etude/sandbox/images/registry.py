"""Pulls an image from an OCI registry: the manifest for this machine, then the missing blobs, a few at a time.

Invariant: downloads are trusted only if their digest matches. Partial downloads lie in the scratch folder that this
process has in the image store. They are removed when the pull ends, or together with that folder.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import httpx

from etude.sandbox.contract import ImageError
from etude.sandbox.images.layers import DEFAULT_BOUNDS, Bounds
from etude.sandbox.images.oci import (
    INDEXES,
    MANIFESTS,
    MAX_JSON,
    Blob,
    Say,
    chain_names,
    choose,
    make_image,
    make_plan,
    quiet,
    read_config,
    read_json,
    read_manifest,
)
from etude.sandbox.images.reference import Reference
from etude.sandbox.images.registry_http import RegistryHttp
from etude.sandbox.images.store import ImageStore
from etude.sandbox.images.store_process import in_store_process

_AT_ONCE = 4
_FAILURES, _WAIT_SECONDS = 6, 0.25
"""A download is given up after this many failures that brought no new byte. The wait doubles with each of them."""


@in_store_process
def pull(store: ImageStore, reference: str, *, say: Say = quiet, bounds: Bounds = DEFAULT_BOUNDS) -> str:
    """Pull an image and return its id. An ImageError names what the registry refused or which blob is damaged."""
    name = Reference.parse(reference)
    with store.fresh("pull") as folder, Registry(name, say) as registry:
        folder.mkdir()
        digest, config, blobs = registry.resolve()
        say(f"{name} is {digest}")
        what = f"{name}, config {config.digest}"
        settings = registry.read(f"blobs/{config.digest}", config)
        for blob in blobs:
            if blob.size > bounds.bytes:
                raise ImageError(f"{name}: expected {bounds.bytes} bytes or fewer of {blob.digest}, found {blob.size}")
        names = chain_names(read_config(settings, what)[1])
        with store.hold(names):
            missing = (blob for blob, layer in zip(blobs, names, strict=False) if not store.has_layer(layer))
            opener = registry.download(dict.fromkeys(missing), folder)
            plan = make_plan(settings, [(blob, opener(blob)) for blob in blobs], what)
            return make_image(store, plan, f"pulled from {name.registry}/{name.repository}@{digest}", say, bounds)


class Registry:
    def __init__(self, reference: Reference, say: Say) -> None:
        self.reference, self._say = reference, say
        self._stopped = False
        self._pool = ThreadPoolExecutor(_AT_ONCE, "fetch-blobs")
        self._http = RegistryHttp(reference)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._pool.shutdown(cancel_futures=True)
        self._http.close()

    def resolve(self) -> tuple[str, Blob, list[Blob]]:
        """Return the digest that the reference stands for, the blob of the image's configuration, and the blobs of its
        layers, lowest first."""
        wanted = Blob(self.reference.digest) if self.reference.digest else None
        data = self.read(f"manifests/{self.reference.wanted}", wanted)
        digest = self.reference.digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
        for _ in range(3):  # An index may point to another index.
            record = read_json(data, f"{self.reference}, manifest")
            if record.get("mediaType") not in INDEXES and "manifests" not in record:
                break
            chosen = choose(record, f"{self.reference}, index")
            data = self.read(f"manifests/{chosen.digest}", chosen)
        return digest, *read_manifest(data, f"{self.reference}, manifest")

    def read(self, path: str, blob: Blob | None) -> bytes:
        """Return a small file of the registry. If `blob` is given, check the content against its digest."""
        file = io.BytesIO()
        self._fetch(path, file, -1)
        return blob.check(file.getvalue(), f"{self.reference}, {path}") if blob else file.getvalue()

    def download(self, blobs: Iterable[Blob], folder: Path) -> Callable[[Blob], Callable[[], IO[bytes]]]:
        """Start fetching the blobs into `folder`. Return a function that maps a blob to its opener. The opener waits
        until the blob has arrived, then opens it."""
        coming = {
            blob.digest: self._pool.submit(self._download, blob, folder / str(index))
            for index, blob in enumerate(blobs)
        }
        return lambda blob: lambda: coming[blob.digest].result().open("rb")

    def _download(self, blob: Blob, path: Path) -> Path:
        with path.open("wb") as file:
            self._fetch(f"blobs/{blob.digest}", file, blob.size)
        self._say(f"fetched {blob.digest[:19]}, {path.stat().st_size / 1e6:.1f} MB")
        return path

    def _fetch(self, path: str, file: IO[bytes], size: int) -> None:
        """Fetch a file of `size` bytes (-1 if unknown). If the connection breaks, resume the download."""
        failures = 0
        while failures < _FAILURES and not self._stopped:
            had = file.tell()
            try:
                self._fetch_rest(path, file, size)
                if size in (-1, file.tell()):
                    return
                error = f"ended after {file.tell()} of {size} bytes"
            except (httpx.TransportError, _Busy) as failure:
                error = str(failure) or type(failure).__name__
            if file.tell() <= had:
                failures += 1
                time.sleep(_WAIT_SECONDS * 2**failures)
        raise ImageError(f"{self.reference}: cannot fetch {path} ({error if failures else 'stopped'}); try again")

    def _fetch_rest(self, path: str, file: IO[bytes], size: int) -> None:
        """Fetch what `file` still lacks of the registry's file at `path`, in one request. A server that cannot send a
        part sends the whole file, which then replaces the content of `file`."""
        start = file.tell()
        headers = {"Accept": ", ".join((*MANIFESTS, *INDEXES, "*/*"))}
        if start:
            headers["Range"] = f"bytes={start}-"
        with self._http.get(path, headers) as response:
            self._check_status(response, path)
            if start and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                file.seek(0)
                file.truncate()
            for chunk in response.iter_raw():
                file.write(chunk)
                if self._stopped:
                    return
                if file.tell() > (most := MAX_JSON if size < 0 else size):
                    raise ImageError(f"{self.reference}: expected {most} bytes or fewer of {path}, found more")

    def _check_status(self, response: httpx.Response, path: str) -> None:
        status = response.status_code
        if status in (200, 206):
            return
        if status in (408, 429) or status >= 500:
            raise _Busy(f"HTTP {status}")
        if status in (401, 403):
            hint = f"log in with `docker login {self.reference.registry}`, or ask for access"
            raise ImageError(f"{self.reference}: the registry refuses this (HTTP {status}); {hint}")
        if status == 404:
            raise ImageError(f"{self.reference}: {self.reference.host} has no {path}; check name, tag and digest")
        raise ImageError(f"{self.reference}: expected {path}, got HTTP {status} from {self.reference.host}")


class _Busy(Exception):
    """The registry is busy or has failed, so the request should be repeated later."""
