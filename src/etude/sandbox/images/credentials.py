"""Authenticates towards a registry: anonymously, by token, or by the password that `docker login` or `podman login` has
stored.

Invariant: credentials are sent only to the registry they are stored for and to the token server that this registry
names, and only over TLS or to this machine itself.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import httpx

from etude.sandbox.contract import ImageError
from etude.sandbox.images.reference import Reference, is_loopback

_FIELD = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")
Ask = Callable[[httpx.URL, dict[str, str]], tuple[int, bytes]]
"""Function that sends a GET request with (URL, headers) and returns (status, size-limited response body)."""


class RegistryAuth:
    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._password = stored_credentials(reference.registry)
        self.header = ""
        """Authorization header for requests to the registry. Empty until the registry asks for one."""

    def prepare(self, refusal: httpx.Response, ask: Ask) -> bool:
        """Set `header` to what the registry's refusal asks for. Return False if there are no credentials for it."""
        challenge = refusal.headers.get("WWW-Authenticate", "")
        scheme = challenge.partition(" ")[0].lower()
        if scheme == "bearer":
            headers = {"Authorization": self._password} if self._password else {}
            self.header = f"Bearer {self._token(*ask(self._token_address(challenge), headers))}"
        elif scheme == "basic" and self._password:
            self.header = self._password
        else:
            return False
        return True

    def _token_address(self, challenge: str) -> httpx.URL:
        """Return the URL for a pull token at the token server that the registry's `challenge` names."""
        fields = dict(_FIELD.findall(challenge))
        try:
            realm = httpx.URL(fields.get("realm", ""))
        except httpx.InvalidURL as error:
            raise ImageError(f"{self._reference}: the registry names no address for tokens") from error
        loopback = is_loopback(realm.netloc.decode())
        if (realm.scheme != "https" and not loopback) or (loopback and not is_loopback(self._reference.host)):
            raise ImageError(f"{self._reference}: the registry names {realm} for tokens; expected an https address")
        wanted = {"scope": fields.get("scope") or f"repository:{self._reference.repository}:pull"}
        if "service" in fields:
            wanted["service"] = fields["service"]
        return realm.copy_merge_params(wanted)

    def _token(self, status: int, answer: bytes) -> str:
        try:
            record = json.loads(answer) if status == 200 else {}
            token = record.get("token") or record.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            what = "these credentials" if self._password else "anonymous pulls"
            raise ImageError(f"{self._reference}: the token server refuses {what} (HTTP {status})")
        return token


def stored_credentials(registry: str) -> str:
    """Return the Authorization header for a registry from the login files of docker and podman, or "" if they have
    none. Credential helpers are not used."""
    keys = {registry, f"https://{registry}"}
    if registry == "docker.io":
        keys |= {"https://index.docker.io/v1/", "index.docker.io"}
    folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    files = [Path(folder) / "config.json"]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        files.append(Path(runtime) / "containers/auth.json")
    for file in files:
        try:
            logins = json.loads(file.read_text())["auths"]
            for key in sorted(keys & set(logins)):
                if base64.b64decode(logins[key].get("auth", "")):
                    return f"Basic {logins[key]['auth']}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return ""
