"""Where Dockerfiles are built in tests: a backend, a context, and what a build said."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from etude.sandbox import BoxSpec, EmbeddedSandboxes, ImageError, Limits
from etude.sandbox.images.build import build_image
from etude.sandbox.images.image import Image

SMALL = Limits(memory_mb=64, processes=50, cpu_seconds=20, file_mb=4, disk_mb=8, output_bytes=100_000)


class Kitchen:
    """A store, a context, and what a build said."""

    def __init__(self, folder: Path, sandboxes: EmbeddedSandboxes, base: str) -> None:
        self.context = folder / "context"
        self.context.mkdir(exist_ok=True)
        self.sandboxes, self.base = sandboxes, base
        self.said: list[str] = []

    def write(self, dockerfile: str, **files: str) -> None:
        (self.context / "Dockerfile").write_text(f"ARG BASE\n{dockerfile}")
        for name, content in files.items():
            path = self.context / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    async def build(self, *, limits: Limits = SMALL, seconds: float = 20.0, **options: Any) -> str:
        self.said = []
        arguments = {"BASE": self.base, **options.pop("arguments", {})}
        return await build_image(
            self.sandboxes,
            self.sandboxes.store,
            self.context,
            arguments=arguments,
            say=self.said.append,
            limits=limits,
            step_seconds=seconds,
            **options,
        )

    async def fresh(self, **options: Any) -> list[str]:
        """Builds, and returns the instructions that were not found as before."""
        await self.build(**options)
        steps = [line for line in self.said if not line.startswith("    ") or line == "    as before"]
        pairs = zip(steps, [*steps[1:], ""], strict=True)
        made = [step.partition(" ")[2] for step, after in pairs if after != "    as before" and step != "    as before"]
        return [step for step in made if step.split()[0] in ("RUN", "COPY", "ADD", "WORKDIR")]

    async def refused(self, **options: Any) -> str:
        with pytest.raises(ImageError) as caught:
            await self.build(**options)
        return str(caught.value).removeprefix(f"{self.context}/")

    async def run(self, image: str, command: str) -> str:
        box = await self.sandboxes.create(BoxSpec(image))
        result = await box.exec(command, timeout=10)
        await box.destroy()
        assert result.code == 0, result
        return result.stdout.decode()

    def image(self, name: str) -> Image:
        return self.sandboxes.store.image(name)


@contextlib.asynccontextmanager
async def kitchen(folder: Path, root_tar: Path) -> AsyncIterator[Kitchen]:
    sandboxes = EmbeddedSandboxes(folder / "store")
    try:
        yield Kitchen(folder, sandboxes, await sandboxes.import_image(root_tar))
    finally:
        await sandboxes.close()


Cook = Callable[[Kitchen], Coroutine[Any, Any, None]]


def cooked(test: Cook) -> Callable[[Path, Path], None]:
    @functools.wraps(test)
    def run(tmp_path: Path, root_tar: Path) -> None:
        async def whole() -> None:
            async with kitchen(tmp_path, root_tar) as k:
                await test(k)

        asyncio.run(whole())

    del run.__wrapped__  # type: ignore[attr-defined]
    return run
