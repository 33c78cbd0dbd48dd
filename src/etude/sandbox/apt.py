"""Where this host's own apt fetches from: the web addresses in its sources, in both of their formats."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path("/etc/apt")
_LINE = re.compile(r"(?:deb|deb-src)\s+(?:\[[^\]]*\]\s+)?(\S+)")
_WEB = re.compile(r"https?://\S+")


def apt_addresses(sources: Path = SOURCES) -> list[str]:
    """Each once, in apt's order, without the slash at the end; what cannot be read counts for nothing."""
    found: list[str] = []
    for path in [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]:
        if path.suffix not in (".list", ".sources"):
            continue
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        found += _of_stanzas(lines) if path.suffix == ".sources" else _of_lines(lines)
    return list(dict.fromkeys(address.rstrip("/") for address in found if _WEB.fullmatch(address)))


def _of_lines(lines: list[str]) -> list[str]:
    """One source a line: deb [options] address suite components."""
    matches = (_LINE.match(line.partition("#")[0].strip()) for line in lines)
    return [match[1] for match in matches if match]


def _of_stanzas(lines: list[str]) -> list[str]:
    """Fields, one stanza for each source; a blank line ends it, and a field goes on in lines that are indented."""
    found: list[str] = []
    fields: dict[str, str] = {}
    name = ""
    for line in [*lines, ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields.get("enabled", "").strip().lower() not in ("no", "false", "without", "off", "disable", "0"):
                found += fields.get("uris", "").split()
            fields = {}
        elif line[0].isspace():
            fields[name] = f"{fields.get(name, '')} {line}"
        else:
            name, _, value = line.partition(":")
            name = name.lower()
            fields[name] = value
    return found
