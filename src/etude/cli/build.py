"""etude sandbox build: builds an image from a Dockerfile. Build steps and their output go to standard error as they
appear."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from etude.cli.images import say
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.sandbox.contract import NO_EGRESS, ImageError, RequestRefused
from etude.sandbox.egress import parse_egress


def build_command(
    context: Path, dockerfile: Path | None, target: str, arguments: list[str], egress: str, store: Path
) -> int:
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
    print(image)
    return 0


def _argument(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ImageError(f"--arg {text}: expected NAME=value")
    return name, value
