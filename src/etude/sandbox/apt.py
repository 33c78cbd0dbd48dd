"""Reads this host's apt settings: the URLs that its sources fetch from (in both file formats), and the proxies that apt
uses."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.request import getproxies_environment

SOURCES = Path("/etc/apt")
_LINE = re.compile(r"(?:deb|deb-src)\s+(?:\[[^\]]*\]\s+)?(\S+)")
_WEB = re.compile(r"https?://\S+")


def apt_addresses(sources: Path = SOURCES) -> list[str]:
    """Return the apt source URLs in file order, deduplicated, without trailing slashes. Unreadable files are
    skipped."""
    found: list[str] = []
    for path in [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]:
        if path.suffix not in (".list", ".sources"):
            continue
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        found += _urls_of_stanzas(lines) if path.suffix == ".sources" else _urls_of_lines(lines)
    return list(dict.fromkeys(address.rstrip("/") for address in found if _WEB.fullmatch(address)))


def proxy_variables() -> dict[str, str]:
    """Return the proxy variables (`http_proxy` and so on) for a program that fetches packages: from this host's
    environment, or else from apt's settings. Every program understands the lower-case names."""
    found = {}
    for kind in ("http", "https"):
        ask = ["apt-config", "dump", "--no-empty", "--format", "%v%n", f"Acquire::{kind}::Proxy"]
        try:
            value = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=20).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            continue
        if _WEB.fullmatch(value):  # apt also prints "DIRECT" here, which is no proxy.
            found[kind] = value
    return {f"{kind}_proxy": address for kind, address in (found | getproxies_environment()).items()}


def _urls_of_lines(lines: list[str]) -> list[str]:
    """Parse sources.list: one `deb [options] URL suite components` per line."""
    matches = (_LINE.match(line.partition("#")[0].strip()) for line in lines)
    return [match[1] for match in matches if match]


def _urls_of_stanzas(lines: list[str]) -> list[str]:
    """Parse a deb822 .sources file: stanzas of fields that end at a blank line; indented lines continue a field.
    Disabled stanzas are skipped."""
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
