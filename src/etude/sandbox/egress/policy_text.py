"""Parses an egress policy as users write it: names of policies and host patterns, separated by commas."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from etude.sandbox.contract import Egress, RequestRefused
from etude.sandbox.egress.package_clients import CLIENTS, hosts_of
from etude.sandbox.egress.policy import Pattern, Policy
from etude.sandbox.proxies import UpstreamProxy

NONE = "none"
"""Name of the policy that allows no host."""
_EXPECTED = (
    'allow = ["host", ...], and optionally credentials = true, private = true, upstream_proxy = "http://host:port"'
)
_SETTINGS = {"credentials": bool, "private": bool, "upstream_proxy": str}


def parse_egress(text: str) -> Egress:
    """Parse a list such as "pip,apt,team.toml:python,mirror.example:8443". Raise RequestRefused if it is not valid.

    "pip", "npm" and "apt" stand for the hosts that this host's own clients use (package_clients.py). "none" stands for
    no host. "team.toml:python" stands for the table [python] of that file: `allow = ["mirror.example"]`, and optionally
    `credentials = true` and `private = true`. These two settings apply to everything that the box may reach, so a table
    with one of them must be the only entry. If a table sets `upstream_proxy = "http://[user:password@]host:port"`, the
    box reaches all hosts of the list through that proxy.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    parts = [_parse_word(word) for word in words]
    unknown = [word for word, part in zip(words, parts, strict=True) if part is None]
    if unknown or not words:
        known = ", ".join([*CLIENTS, NONE])
        raise RequestRefused(
            f"egress {text!r}: expected {known}, a table of yours (team.toml:python) or patterns of hosts "
            f"(mirror.example:8443), with commas; found {', '.join(unknown) or 'nothing'}"
        )
    policies = [part for part in parts if part is not None]
    if len(policies) > 1 and (wide := next((one for one in policies if one.credentials or one.private), None)):
        raise RequestRefused(
            f"egress {text!r}: the credentials and private of {wide.name} would hold for the other hosts too; expected "
            "it alone, with all its hosts in its table"
        )
    proxies = {one.proxy for one in policies} - {""}
    if len(proxies) > 1:
        raise RequestRefused(f"egress {text!r}: expected one upstream_proxy in all its tables, found {len(proxies)}")
    allow = dict.fromkeys(pattern for one in policies for pattern in one.allow)
    egress = replace(policies[0], name=",".join(words), allow=tuple(allow), proxy=next(iter(proxies), ""))
    Policy(egress)
    return egress


def _parse_word(word: str) -> Egress | None:
    """Parse one entry of a policy list. Return None if the entry is unknown."""
    path, colon, table = word.rpartition(":")
    if colon and path.endswith(".toml"):
        return _from_file(word, Path(path), table)
    if word in CLIENTS:
        return Egress(word, hosts_of(word))
    if word == NONE:
        return Egress(word)
    return Egress(word, (word,)) if "." in word or ":" in word else None


def _from_file(word: str, path: Path, table: str) -> Egress:
    """Read the policy of one table of a TOML file. `word` is the entry as the user wrote it."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestRefused(f"egress {word!r}: cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # Neither UTF-8 nor TOML.
        raise RequestRefused(f"egress {word!r}: {path} is no TOML: {error}") from error
    found = tables.get(table)
    if not isinstance(found, dict):
        there = ", ".join(name for name, value in tables.items() if isinstance(value, dict)) or "none"
        raise RequestRefused(f"egress {word!r}: expected a table [{table}] in {path}; there are {there}")
    allow, others = found.get("allow"), {name: value for name, value in found.items() if name != "allow"}
    if not isinstance(allow, list) or not all(isinstance(host, str) for host in allow):
        raise RequestRefused(f"{path} [{table}]: expected {_EXPECTED}; found allow = {allow!r}")
    for name, value in others.items():
        if not isinstance(value, _SETTINGS.get(name, ())):
            shown = "a text" if isinstance(value, str) else repr(value)  # Not shown, since it may hold a login.
            raise RequestRefused(f"{path} [{table}]: expected {_EXPECTED}; found {name} = {shown}")
    proxy = others.pop("upstream_proxy", "")
    try:
        for pattern in allow:
            Pattern.parse(pattern)
        if proxy:
            UpstreamProxy.parse(proxy, "upstream_proxy")
    except RequestRefused as error:
        raise RequestRefused(f"{path} [{table}]: {error}") from error
    return Egress(word, tuple(allow), proxy=proxy, **others)
