"""Names of images in registries: "debian", "debian:12", "registry.example/team/name:tag@sha256:..."."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from etude.sandbox.contract import RequestRefused

_DEFAULT, _DEFAULT_HOST = "docker.io", "registry-1.docker.io"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_REGISTRY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Reference:
    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a name; raises RequestRefused if it is not valid."""
        rest, at, digest = text.partition("@")
        first, slash, below = rest.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            registry, name = first, below
        else:
            registry, name = _DEFAULT, rest
        repository, colon, tag = name.partition(":")
        if registry == _DEFAULT and "/" not in repository:
            repository = f"library/{repository}"
        good = [_REGISTRY.fullmatch(registry), _REPOSITORY.fullmatch(repository), len(repository) < 256]
        good += [not colon or _TAG.fullmatch(tag), not at or _DIGEST.fullmatch(digest)]
        if not all(good):
            raise RequestRefused(
                f"{text!r} is no image reference; expected [registry/]name[:tag] or [registry/]name@sha256:<64 digits>"
            )
        return cls(registry, repository, tag or ("" if digest else "latest"), digest)

    @property
    def host(self) -> str:
        return _DEFAULT_HOST if self.registry == _DEFAULT else self.registry

    @property
    def url(self) -> str:
        """URL of the repository. Plain http only for a registry on this machine, where nobody else sees the traffic."""
        scheme = "http" if is_loopback(self.host) else "https"
        return f"{scheme}://{self.host}/v2/{self.repository}"

    @property
    def wanted(self) -> str:
        """What to ask the registry for: the digest if the name has one, else the tag."""
        return self.digest or self.tag

    def __str__(self) -> str:
        tag, digest = f":{self.tag}" if self.tag else "", f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"


def is_loopback(host: str) -> bool:
    """Return whether a host, given with or without a port, is a loopback address or "localhost"."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
