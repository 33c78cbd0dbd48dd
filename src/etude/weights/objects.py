"""Access to an object store: a local folder, or a bucket given as s3://, gs:// or az:// URL.

Every put is atomic (a reader sees the whole object or none). Credentials and endpoints come from the environment
variables of the providers' own tools (AWS_*, GOOGLE_*, AZURE_*); an endpoint without TLS needs AWS_ALLOW_HTTP=true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from etude.weights.errors import StoreFailed, WeightsError

SCHEMES = ("file", "s3", "gs", "az")
STAGED = re.compile(r"#\d+$")
"""Names of the temporary files that a local store writes beside an object, and leaves behind when it is killed."""


class Objects:
    def __init__(self, location: str | Path) -> None:
        self.location = str(location)
        self._folder: Path | None = None
        scheme, separator, path = self.location.partition("://")
        if separator and scheme not in SCHEMES:
            raise WeightsError(f"{self.location}: expected a folder, {', '.join(f'{known}://' for known in SCHEMES)}")
        with self._named("open"):
            if separator and scheme != "file":
                self._store: ObjectStore = from_url(self.location)
                return
            self._folder = Path(path if separator else self.location).absolute()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._store = LocalStore(self._folder)

    def put(self, path: str, data: bytes | bytearray) -> None:
        with self._named(f"write {path}"):
            obstore.put(self._store, path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object if it does not exist. Return whether it was written: of two concurrent writers exactly one
        gets True."""
        with self._named(f"write {path}"):
            try:
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

    def get(self, path: str) -> memoryview | None:
        """Return an object's bytes; None if there is no such object."""
        with self._named(f"read {path}"):
            try:
                return memoryview(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                return None

    @contextmanager
    def writing(self, path: str) -> Iterator[Callable[[bytes], object]]:
        """Context with a function that appends to an object. It exists once the context ends without an exception."""
        with self._named(f"write {path}"):
            writer = obstore.open_writer(self._store, path)
            yield writer.write
            writer.close()

    def size(self, path: str) -> int | None:
        """Return an object's size; None if there is no such object."""
        with self._named(f"read {path}"):
            try:
                return obstore.head(self._store, path)["size"]
            except FileNotFoundError:
                return None

    def get_range(self, path: str, begin: int, length: int) -> memoryview:
        """Return a range of bytes of an object that is at least so long."""
        with self._named(f"read {path}"):
            return memoryview(obstore.get_range(self._store, path, start=begin, length=length))

    def list(self, prefix: str = "") -> list[str]:
        with self._named(f"list {prefix}"):
            return [entry["path"] for batch in obstore.list(self._store, prefix or None) for entry in batch]

    def times(self) -> dict[str, datetime]:
        """Return when each object was last written, by the store's clock."""
        with self._named("list"):
            found = (entry for batch in obstore.list(self._store) for entry in batch)
            return {entry["path"]: entry["last_modified"] for entry in found}

    def delete(self, path: str) -> None:
        """Delete an object if it exists."""
        with self._named(f"delete {path}"), suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def delete_others(self, prefix: str, keep: set[str]) -> None:
        """Delete all objects under `prefix` but `keep`, and a local store's temporary files there. Writers leave such
        files if they are killed or lose the race to publish."""
        gone = [path for path in self.list(prefix) if path not in keep]
        with self._named(f"clean {prefix}"):
            if gone:
                obstore.delete(self._store, gone)
            if self._folder is not None and (self._folder / prefix).is_dir():
                for path in (self._folder / prefix).iterdir():
                    if STAGED.search(path.name):
                        path.unlink(missing_ok=True)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise StoreFailed(f"{self.location}: could not {what}: {reason}") from error
