"""etude sandbox build and images: builds, lists, adds and removes the images of a store."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from etude.cli.wording import count, table
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.sandbox.contract import NO_EGRESS, ImageError, RequestRefused
from etude.sandbox.egress import parse_egress
from etude.sandbox.embedded.probe import probe_host
from etude.sandbox.images.collect import collect, image_bytes
from etude.sandbox.images.debootstrap import bootstrap
from etude.sandbox.images.importing import import_image
from etude.sandbox.images.registry import pull
from etude.sandbox.images.store import ImageStore

_NAMELESS = "a step, a snapshot or single files"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def list_command(store: Path, *, everything: bool) -> int:
    with _opened(store, must_exist=True) as opened:
        rows, left_out = [("IMAGE", "LAYERS", "SIZE", "LAST USED", "FROM")], 0
        for name, used in reversed(list(opened.images())):
            origin = opened.origin(name)
            if origin or everything:
                rows.append((name, *_facts(opened, name), _ago(used), origin or _NAMELESS))
            else:
                left_out += 1
    print(table(rows))
    if left_out:
        say(f"not shown: {left_out} of steps, snapshots or single files; --all shows them")
    return 0


def import_command(source: Path, store: Path) -> int:
    with _opened(store) as opened:
        return _told(import_image(opened, source, say=say))


def pull_command(reference: str, store: Path) -> int:
    with _opened(store) as opened:
        return _told(pull(opened, reference, say=say))


def debootstrap_command(suite: str, mirror: str, include: Sequence[str], store: Path) -> int:
    with _opened(store) as opened:
        return _told(bootstrap(opened, suite, mirror=mirror, include=include, say=say))


def build_command(
    context: Path, dockerfile: Path | None, target: str, arguments: list[str], egress: str, store: Path
) -> int:
    """Build an image from a Dockerfile. Steps and their output go to standard error as they appear."""
    given = dict(_argument(text) for text in arguments)
    try:
        policy = parse_egress(egress) if egress else NO_EGRESS
    except RequestRefused as error:
        raise ImageError(f"--egress: {error}") from error

    async def build() -> str:
        sandboxes = open_sandboxes(SandboxRecipe(), store)
        try:
            return await sandboxes.build_image(
                context, dockerfile=dockerfile, target=target, arguments=given, egress=policy, say=say
            )
        finally:
            await sandboxes.close()

    began = time.monotonic()
    image = asyncio.run(build())
    say(f"built in {time.monotonic() - began:.1f} s")
    return _told(image)


def remove_command(images: Sequence[str], store: Path) -> int:
    with _opened(store, must_exist=True) as opened:
        known = {name for name, _ in opened.images()}
        for name in images:
            if name not in known:
                raise ImageError(f"no image {name!r} in {store}; `etude sandbox images list` shows what there is")
        for name in images:
            opened.forget(name)
    print(f"removed: {', '.join(images)}; `etude sandbox images collect` frees the disk")
    return 0


def collect_command(budget: str, grace_minutes: float, store: Path) -> int:
    limit = parse_size(budget)
    with _opened(store, must_exist=True) as opened:
        done = collect(opened, limit, grace_seconds=60 * grace_minutes)
    print(
        f"freed {_size(done.freed_bytes)}: {count(len(done.images), 'image')}, {count(done.layers, 'layer')}; "
        f"{_size(done.kept_bytes)} left"
    )
    if done.kept_bytes > limit:
        print(f"everything left is in use, or was used within the last {grace_minutes:g} minutes")
    return 0


def parse_size(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.strip().upper())
    if not found:
        raise ImageError(f"{text!r} is not a size: expected a number with or without K, M, G or T, such as 500M or 20G")
    return int(float(found[1]) * _UNITS[found[2]])


def _argument(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ImageError(f"--arg {text}: expected NAME=value")
    return name, value


@contextmanager
def _opened(root: Path, *, must_exist: bool = False) -> Iterator[ImageStore]:
    if must_exist and not (root / "images").is_dir():
        raise ImageError(f"{root} is not an image store: name one with --store, or make one with import, pull or build")
    store = ImageStore(root.absolute(), probe_host().ids)
    try:
        yield store
    except RequestRefused as error:  # Raised for a name or address that the user gave.
        raise ImageError(str(error)) from error
    finally:
        store.close()


def _told(image: str) -> int:
    print(image)
    return 0


def say(line: str) -> None:
    """Print to standard error. Standard output is for the image's id, which scripts read."""
    print(line, file=sys.stderr, flush=True)


def _facts(store: ImageStore, name: str) -> tuple[str, str]:
    try:
        return str(len(store.stack(store.image(name)))), _size(image_bytes(store, name))
    except ImageError:
        return "?", "damaged"


def _size(bytes: int) -> str:
    for unit, size in reversed(_UNITS.items()):
        if bytes >= size > 1:
            return f"{bytes / size:.1f} {unit}B"
    return f"{bytes} B"


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            return f"{count(int(seconds // size), unit)} ago"
    return "just now"
