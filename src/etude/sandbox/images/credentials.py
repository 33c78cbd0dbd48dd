"""How a registry is asked: anonymously, or as `docker login` and `podman login` have noted it, by token or password.

Invariant: credentials go to the registry they are noted for and to the token server it names, and only over TLS or to
this machine itself.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Generator
from pathlib import Path

import httpx

from etude.sandbox.contract import ImageError
from etude.sandbox.images.reference import Reference, is_loopback

_FIELD = re.compile(r'([a-zA-Z_]+)="([^"]*)"')


class RegistryAuth(httpx.Auth):
    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._password = noted_credentials(reference.registry)
        self._header = ""

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._header:
            request.headers["Authorization"] = self._header
        response = yield request
        if response.status_code != 401:
            return
        challenge = response.headers.get("WWW-Authenticate", "")
        scheme = challenge.partition(" ")[0].lower()
        if scheme == "bearer":
            answer = yield self._token_request(dict(_FIELD.findall(challenge)))
            answer.read()
            self._header = f"Bearer {self._token(answer)}"
        elif scheme == "basic" and self._password:
            self._header = self._password
        else:
            return
        request.headers["Authorization"] = self._header
        yield request

    def _token_request(self, fields: dict[str, str]) -> httpx.Request:
        realm = httpx.URL(fields.get("realm", ""))
        if realm.scheme != "https" and not is_loopback(realm.host):
            raise ImageError(f"{self._reference}: the registry names {realm} for tokens; expected an https address")
        wanted = {"scope": fields.get("scope") or f"repository:{self._reference.repository}:pull"}
        if "service" in fields:
            wanted["service"] = fields["service"]
        headers = {"Authorization": self._password} if self._password else {}
        return httpx.Request("GET", realm.copy_merge_params(wanted), headers=headers)

    def _token(self, answer: httpx.Response) -> str:
        try:
            record = answer.json() if answer.status_code == 200 else {}
            token = record.get("token") or record.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str):
            what = "these credentials" if self._password else "anonymous pulls"
            raise ImageError(f"{self._reference}: the token server refuses {what} (HTTP {answer.status_code})")
        return token


def noted_credentials(registry: str) -> str:
    """The Authorization header for a registry, or nothing; what credential helpers keep is not asked for."""
    keys = {registry, f"https://{registry}"}
    if registry == "docker.io":
        keys |= {"https://index.docker.io/v1/", "index.docker.io"}
    folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    places = [Path(folder) / "config.json"]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(runtime) / "containers/auth.json")
    for place in places:
        try:
            notes = json.loads(place.read_text())["auths"]
            for key in sorted(keys & set(notes)):
                if base64.b64decode(notes[key].get("auth", "")):
                    return f"Basic {notes[key]['auth']}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return ""
