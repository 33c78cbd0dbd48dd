"""Refuses side-cars: services that a compose file would run beside a box. They are not supported."""

from __future__ import annotations

import re
from pathlib import Path

from etude.sandbox.contract import ImageError

COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


def refuse_side_cars(folder: Path) -> None:
    for name in COMPOSE_FILES:
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
