"""Builds an image from a folder with a Dockerfile."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from etude.sandbox.contract import NO_EGRESS, BuildFailed, BuildTerms, Egress, ImageError, Limits, Sandboxes, TriedBuild
from etude.sandbox.cpu_share import ShareMeter
from etude.sandbox.images.build.builder import Builder
from etude.sandbox.images.build.context import Context
from etude.sandbox.images.build.dockerfile import parse_dockerfile
from etude.sandbox.images.build.plan import make_plan, unused
from etude.sandbox.images.build.spending import Spending
from etude.sandbox.images.oci import Say, quiet
from etude.sandbox.images.store import ImageStore

BUILD_LIMITS = Limits(
    memory_mb=4096, processes=1024, cpu_seconds=3600, file_mb=4096, disk_mb=8192, output_bytes=16 << 20
)
"""Default limits of one build step. Compilers and package managers need more than an agent's commands."""
STEP_SECONDS = 1800.0
_COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


async def build_image(
    sandboxes: Sandboxes,
    store: ImageStore,
    context: Path,
    *,
    dockerfile: Path | None = None,
    target: str = "",
    arguments: dict[str, str] | None = None,
    egress: Egress = NO_EGRESS,
    say: Say | None = None,
    limits: Limits = BUILD_LIMITS,
    step_seconds: float = STEP_SECONDS,
    spending: Spending | None = None,
    env: tuple[tuple[str, str], ...] = (),
) -> str:
    """Build the stage `target` (by default the last one) and the stages it needs. Return the image's id.

    `say` receives each step and each line of its output. `arguments` are values for ARG. An ImageError names the file,
    line and instruction.
    """
    file = dockerfile or context / "Dockerfile"
    if file.name in _COMPOSE_FILES:
        refuse_side_cars(file.parent)
    report, given = say or quiet, arguments or {}
    opened = await asyncio.to_thread(Context.open, context, file)
    text = await asyncio.to_thread(_read, file)
    try:
        parsed = parse_dockerfile(text, str(file))
        plan = make_plan(parsed, target, given)
    except ImageError as error:
        raise BuildFailed(str(error)) from error
    for name in unused(parsed, given):
        report(f"no ARG declares {name}: its value is not used")
    builder = Builder(sandboxes, store, opened, plan, given, egress, limits, step_seconds, report)
    builder.spending, builder.env = spending or builder.spending, env
    return store.record(await builder.build(), f"built from {file.absolute()}")


async def try_build(
    sandboxes: Sandboxes,
    store: ImageStore,
    context: Path,
    terms: BuildTerms,
    arguments: dict[str, str] | None,
    say: Say,
) -> TriedBuild:
    """Make a trial build in `store`, which must hold no earlier builds, since their cached steps would be used. If the
    build fails because of the Dockerfile, the result says so, and nothing is raised."""
    spending, watch = Spending(terms.seconds, terms.limits.cpu_seconds), ShareMeter()
    image, failure = "", None
    try:
        image = await build_image(
            sandboxes,
            store,
            context,
            arguments=arguments,
            say=say,
            limits=terms.limits,
            step_seconds=terms.seconds,
            spending=spending,
            env=terms.env,
        )
    except BuildFailed as error:
        failure = error
    return TriedBuild(sandboxes, image, failure, watch.share(spending.used_cpu), spending.most_memory)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ImageError(f"cannot read the Dockerfile {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BuildFailed(f"cannot read the Dockerfile {file}: {error}") from error


def refuse_side_cars(folder: Path) -> None:
    """Refuse a folder with a compose file: its services, which would run beside a box, are not supported."""
    for name in _COMPOSE_FILES:
        path = folder / name
        if path.is_file():
            services = ", ".join(_services(path.read_text(encoding="utf-8", errors="replace")))
            raise ImageError(
                f"{path}: services of a compose file ({services or 'none named'}) are not supported: a box is one set "
                "of processes; start what is needed inside it, or leave the file out"
            )


def _services(text: str) -> list[str]:
    """Return the service names in a compose file. Parses just enough YAML for the error message."""
    found, depth = [], None
    for line in text.splitlines():
        if re.match(r"\S", line) and not line.startswith("#"):
            depth = 0 if re.match(r"services\s*:", line) else None
        elif depth is not None and (match := re.match(r"""(\s+)["']?([\w.-]+)["']?\s*:""", line)):
            depth = depth or len(match[1])
            if len(match[1]) == depth:
                found.append(match[2])
    return found
