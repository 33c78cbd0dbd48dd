"""Builds a Dockerfile and says how it goes, until somebody ends it: builder.py STORE ROOT_TAR CONTEXT."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from etude.sandbox import EmbeddedSandboxes


async def main(store: Path, root: Path, context: Path) -> None:
    sandboxes = EmbeddedSandboxes(store)
    base = await sandboxes.import_image(root)
    await sandboxes.build_image(context, arguments={"BASE": base}, say=lambda line: print(line, flush=True))  # noqa: T201
    await sandboxes.close()


asyncio.run(main(*map(Path, sys.argv[1:])))
