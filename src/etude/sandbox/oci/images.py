"""The image store of the OCI backend. The engine keeps its images under the names `localhost/etude/<store>:<id>`, with
their settings as a label. <store> is a hash of the path of the store's folder.

Invariant: an id of a store always names the same content. The folder itself holds no images. Once it is deleted,
owner.py removes the store's images from the engine.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import secrets
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.sandbox.contract import ImageError, RequestRefused
from etude.sandbox.images.build.context import Context
from etude.sandbox.images.host_base import build_bases
from etude.sandbox.images.image import EMPTY, HOST, Image, ImageConfig
from etude.sandbox.images.store import check_workdir
from etude.sandbox.inside.users import USERS
from etude.sandbox.oci.api import Engine, EngineError
from etude.sandbox.oci.owner import STORE, store_label
from etude.sandbox.oci.tars import (
    DOCKERFILE,
    chunks,
    is_archive,
    tar_of_context,
    tar_of_files,
    tar_of_folder,
    tar_of_skeleton,
)

IMAGE = "etude.image"
"""The label that holds an image's settings, as encoded JSON."""
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class EngineImage:
    reference: str
    engine_id: str
    image: Image
    """The image's base and settings. Its layers are left out, since the engine keeps them."""


class OciImages:
    def __init__(self, engine: Engine, root: Path, base: str) -> None:
        self.engine, self.root, self.base = engine, root, base
        self.binds: list[str] = []
        """The mounts of this host's system folders, in the engine's notation."""
        store = hashlib.blake2b(str(root).encode(), digest_size=6).hexdigest()
        self.repository = f"localhost/etude/{store}"

    # -- looking up

    async def find_image(self, name: str) -> EngineImage:
        """Return the store's image with this id; "host" is the base image. Raise RequestRefused if there is none."""
        if name == HOST:
            return await self._host()
        if _ID.fullmatch(name) and (found := await self._find(name)):
            if found.image.base == HOST and not self.binds:
                await asyncio.to_thread(self._host_folders)
            return found
        raise RequestRefused(
            f"no image {name!r} in the store {self.root}; add_image, import_image, pull_image, build_image or snapshot "
            "makes one, 'host' is always there"
        )

    async def _find(self, name: str) -> EngineImage | None:
        reference = f"{self.repository}:{name}"
        found = await self.engine.image(reference)
        return EngineImage(reference, found["Id"], _image_settings(found)) if found else None

    async def record(self, name: str, engine_id: str) -> str:
        """Tag an image of the engine with `name`, which becomes its id in this store."""
        await self.engine.tag(engine_id, self.repository, name)
        return name

    def labels(self, image: Image) -> dict[str, str]:
        return {STORE: store_label(self.root), IMAGE: base64.urlsafe_b64encode(image.to_json().encode()).decode()}

    # -- the base

    async def _host(self) -> EngineImage:
        """Return the base image that the backend was given, or else a small tree over which this host's system folders
        are mounted."""
        if self.base:
            return await self._given_base()
        if not self.engine.local:
            raise RequestRefused(
                f"the engine at {self.engine.endpoint} is not on this host, so boxes cannot be made over its "
                "system folders: name a base image (a reference of the engine, or a tar)"
            )
        skeleton = await asyncio.to_thread(self._host_folders)
        name = hashlib.blake2b(skeleton.encode(), digest_size=16).hexdigest()
        if not (found := await self._find(name)):
            tar = await asyncio.to_thread(tar_of_skeleton, self.root / skeleton)
            engine_id = await self.engine.import_root(tar, self.labels(Image(HOST, ())))
            await self.record(name, engine_id)
            found = await self._find(name)
        assert found is not None
        return found

    def _host_folders(self) -> str:
        """Generate the tree over which this host's system folders are mounted, and set `binds` to these mounts. Return
        the tree's path relative to the store."""
        bases, store = build_bases(self.root, None), f"{self.root}/"
        self.binds = [f"{source.replace('store:', store)}:/{target}:ro" for source, target in bases.binds]
        return bases.skeletons[HOST]

    async def _given_base(self) -> EngineImage:
        if Path(self.base).exists():
            return await self.find_image(await self.import_file(Path(self.base)))
        found = await self.engine.image(self.base)
        if not found:
            raise RequestRefused(f"the engine has no image {self.base!r}, which is to be the base: pull it first")
        return EngineImage(self.base, found["Id"], _image_settings(found))

    # -- making

    async def add(self, files: dict[str, bytes], base: str, workdir: str) -> str:
        """Make an image, as `Sandboxes.add_image` in contract.py says."""
        inside = check_workdir(workdir)
        below = await self.find_image(base)
        image = replace(below.image, config=replace(below.image.config, workdir=workdir))
        owner = USERS["agent"] if image.config.user == "agent" else 0
        tar = tar_of_files(files, inside, owner)
        facts = (below.engine_id, image.to_json(), hashlib.blake2b(tar).hexdigest())
        name = hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
        if await self._find(name):
            return name
        # Docker takes the owners from the tar, podman from the container.
        body = {"Image": below.reference, "Cmd": ["-"], "User": f"{owner}:{owner}", "Labels": self.labels(image)}
        container = await self.engine.create("", body)
        try:
            await self.engine.put(container, "/", tar)
            await self.engine.commit(container, self.repository, name)
        finally:
            await self.engine.remove("containers", container)
        return name

    async def import_file(self, source: Path) -> str:
        """Import a folder, a tar of a root file system, or an image archive. The content shows which of these it is."""
        if source.is_dir():
            with tempfile.TemporaryDirectory(prefix="etude-import-") as folder:
                tar = Path(folder, "root.tar")
                await asyncio.to_thread(tar_of_folder, source, tar)
                return await self._import(source, tar, archive=False)
        try:
            archive = await asyncio.to_thread(is_archive, source)
        except (OSError, tarfile.TarError, EOFError) as error:
            raise ImageError(f"{source}: expected a folder, a tar or an image archive ({error})") from error
        return await self._import(source, source, archive=archive)

    async def _import(self, source: Path, tar: Path, *, archive: bool) -> str:
        """Load a tar: an image archive if `archive` is set, else a root file system. `source` is named in errors."""
        try:
            if not archive:
                return await self._adopt(await self.engine.import_root(chunks(tar), {}))
            output: list[str] = []
            await self.engine.progress("/images/load", params={"quiet": "true"}, content=chunks(tar), say=output.append)
        except EngineError as error:
            raise ImageError(f"{source} cannot be read as an image: {error}") from error
        loaded = re.search(r"Loaded image(?: ID)?: (\S+)", "\n".join(output))
        if not loaded:
            raise ImageError(f"{source}: the engine loaded no image from it ({' '.join(output).strip()[:300]})")
        return await self._adopt(loaded[1])

    async def pull(self, reference: str) -> str:
        """Pull an image and return its id. A reference without a tag means `:latest`."""
        if not re.search(r"@|:[^/]*$", reference):
            reference += ":latest"
        try:
            await self.engine.progress("/images/create", params={"fromImage": reference}, say=lambda _: None)
        except EngineError as error:
            raise ImageError(f"{reference} cannot be pulled: {error}") from error
        return await self._adopt(reference)

    async def build(
        self,
        context: Path,
        dockerfile: Path | None,
        target: str,
        arguments: dict[str, str] | None,
        say: Callable[[str], None],
    ) -> str:
        """Build an image with the engine's own builder, without network."""
        file = dockerfile or context / "Dockerfile"
        with tempfile.TemporaryDirectory(prefix="etude-build-") as folder:
            tar = Path(folder, "context.tar")
            try:
                opened = await asyncio.to_thread(Context.open, context, file)
                await asyncio.to_thread(tar_of_context, opened, file.read_bytes(), tar)
            except (OSError, ValueError) as error:
                raise ImageError(f"{context}: not built from {file.name}: {error}") from error
            tag = f"{self.repository}:build-{secrets.token_hex(8)}"
            params = {
                "t": tag, "dockerfile": DOCKERFILE, "target": target, "buildargs": json.dumps(arguments or {}),
                "networkmode": "none", "rm": "true", "forcerm": "true",
            }  # fmt: skip
            output: list[str] = []

            def on_line(line: str) -> None:
                output.append(line)
                say(line)

            try:
                await self.engine.progress("/build", params=params, content=chunks(tar), say=on_line)
                built = await self.engine.image(tag)
            except EngineError as error:
                raise ImageError(f"{context}: not built: {error}; {''.join(output[-5:]).strip()[-1000:]}") from error
        if not built:
            raise ImageError(f"{context}: the engine built nothing; {''.join(output[-5:]).strip()[-1000:]}")
        name = await self._adopt(tag)
        await self.engine.remove("images", tag)
        return name

    async def _adopt(self, reference: str) -> str:
        """Give an image of the engine an id in this store, derived from its content. Return the id."""
        found = await self.engine.image(reference)
        if not found:
            raise ImageError(f"the engine does not have {reference}, which it has just been given")
        return await self.record(str(found["Id"]).removeprefix("sha256:")[:32], found["Id"])


def _image_settings(found: dict[str, Any]) -> Image:
    """Return an image's settings: from its label IMAGE, which this store sets, or if it has none, from its own
    configuration."""
    config = found.get("Config") or {}
    if label := (config.get("Labels") or {}).get(IMAGE):
        try:
            return Image.from_json(base64.urlsafe_b64decode(label).decode())
        except (ValueError, KeyError, TypeError) as error:
            raise ImageError(f"image {found['Id']}: its label {IMAGE} is damaged ({error}); make it again") from error
    env = [tuple(entry.split("=", 1)) for entry in config.get("Env") or () if "=" in entry]
    settings = ImageConfig(
        workdir=config.get("WorkingDir") or "/",
        user=config.get("User") or "root",
        env=tuple((name, value) for name, value in env),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
    )
    return Image(EMPTY, (), settings)
