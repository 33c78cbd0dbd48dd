"""Egress policies named after package clients (pip, npm, apt): a box may reach the hosts that this host's own client
uses.

A team's mirrors are included, and no registry address is hard-coded here. The addresses come from the clients
themselves, run outside the working folder, so that a project's files cannot extend what boxes may reach. Logins in
addresses are left out.

An index at a private address, such as http://localhost:3141, contributes its name and port like any other, but boxes
reach it only under a policy with `private=True`.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from urllib.parse import urlsplit

from etude.sandbox.apt import apt_addresses
from etude.sandbox.contract import RequestRefused
from etude.sandbox.egress.policy import DEFAULT_PORTS, host_name

_SECONDS = 60
# pip's own parser knows which of its files, variables and defaults wins. The default index keeps its files on another
# host, which is added.
_ASK_PIP = """
import json
from urllib.parse import urlsplit
from pip._internal.commands import create_command
from pip._internal.models.index import PyPI
options, _ = create_command("install").parse_args([])
indexes = [] if options.no_index else [options.index_url, *options.extra_index_urls]
if PyPI.netloc in [urlsplit(index).hostname for index in indexes]:
    indexes.append("https://" + PyPI.file_storage_domain)
print(json.dumps([*indexes, *options.find_links]))
"""


class _HostsUnknown(Exception):
    """A package client does not report which hosts it uses. The message says why."""


def _pip() -> list[str]:
    """Return the URLs of the indexes that pip uses, and of the pages that it is configured to search for links."""
    python = sys.executable if importlib.util.find_spec("pip") else "python3"
    return [str(address) for address in json.loads(_output_of(python, "-c", _ASK_PIP))]


def _npm() -> list[str]:
    """Return the URLs of npm's default registry, and of the registries set for single scopes."""
    settings = json.loads(_output_of("npm", "config", "list", "--json"))
    return [str(value) for name, value in settings.items() if name == "registry" or name.endswith(":registry")]


CLIENTS = {"pip": _pip, "npm": _npm, "apt": apt_addresses}
"""Name of a package client -> function that returns the URLs that the client uses."""


def hosts_of(client: str) -> tuple[str, ...]:
    """Return the hosts that a client uses, as policy patterns. Raise RequestRefused if they cannot be found out."""
    try:
        patterns = dict.fromkeys(_pattern(address) for address in CLIENTS[client]() if _is_web(address))
        if not patterns:
            raise _HostsUnknown("it is set to use none")
    except (_HostsUnknown, ValueError) as error:
        raise RequestRefused(
            f"egress {client!r}: cannot tell the hosts that this host's {client} uses: {error}; "
            "name them instead ('mirror.example', or with a port 'mirror.example:8443')"
        ) from error
    return tuple(patterns)


def _output_of(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _HostsUnknown(
            f"{command[0]} cannot be run: {getattr(error, 'strerror', None) or 'it takes too long'}"
        ) from error
    if done.returncode != 0:
        raise _HostsUnknown(f"{command[0]} failed (code {done.returncode}): {' '.join(done.stderr.split())[-300:]}")
    return done.stdout


def _is_web(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def _pattern(address: str) -> str:
    """Return the egress policy's pattern for a URL: its host, with the port unless that is 443 or 80."""
    parts = urlsplit(address)
    name = host_name(parts.hostname or "")
    if name is None:
        raise _HostsUnknown(f"{parts.hostname!r} is no host's name")
    return name if parts.port in (None, *DEFAULT_PORTS) else f"{name}:{parts.port}"
