"""Values to redact that no pattern can recognise: secrets in environment variables, names of user, home and host."""

from __future__ import annotations

import base64
import getpass
import html
import json
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, quote_plus

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|DSN|DATABASE_URL", re.IGNORECASE)
_NO_SECRET_NAME = re.compile(
    r"_FILE$|_PATH$|_DIR$|KEYBOARD|SSH_AUTH_SOCK|XAUTHORITY|KEYRING|^PWD$|OLDPWD", re.IGNORECASE
)
_ESCAPED = re.compile(r"%[0-9A-F]{2}")
_URL_ALPHABET = str.maketrans("+/", "-_")
_SHORTEST = 6
"""Minimum length of an environment value to redact. Shorter values occur in any text by chance."""
_COMMON_NAMES = frozenset({"root", "user", "admin", "ubuntu", "debian", "node", "app", "runner", "git", "nobody"})
_COMMON_NAMES |= {"test", "agent", "data", "home", "work", "task", "main", "code", "build"}


class Spelling(NamedTuple):
    text: str
    before: bool = False
    """Whether the Base64 character before `text` encodes bits of the secret, together with bits of the byte before
    it."""
    behind: bool = False
    """Whether the Base64 character behind `text` encodes bits of the secret, together with bits of the byte behind
    it."""


@dataclass(frozen=True, slots=True)
class Known:
    kind: str
    value: str
    whole: bool = False
    """Whether to redact only whole words. True for names, which may occur inside other words; False for keys."""

    def spellings(self) -> Iterator[Spelling]:
        """Yield the spellings of the secret: as it appears in plain text, JSON, URLs, HTML, hexadecimal, and within a
        text in Base64. If it has several lines, yield each line too, except short ones. For a name (`whole`), yield
        only the plain text."""
        yield Spelling(self.value)
        if self.whole:
            return
        data = self.value.encode("utf-8", "surrogatepass")
        quoted = quote(self.value, safe="", errors="surrogatepass")
        texts = [
            json.dumps(self.value)[1:-1],
            json.dumps(self.value, ensure_ascii=False)[1:-1],
            quoted,
            quote_plus(self.value, errors="surrogatepass"),
            _ESCAPED.sub(lambda found: found[0].lower(), quoted),
            html.escape(self.value),
            data.hex(),
            data.hex().upper(),
        ]
        lines = self.value.splitlines()
        if len(lines) > 1:
            texts += [line.strip() for line in lines if len(line.strip()) >= 8]
        yield from map(Spelling, texts)
        yield from _in_base64(data)


def _in_base64(data: bytes) -> Iterator[Spelling]:
    """Yield how `data` is spelled within a longer text in Base64, such as the password in a "user:password". Each three
    bytes of that text become four characters, so there are three spellings in each alphabet. A character that
    shares its bits with the byte before or behind `data` is left out of the spelling's text, which must not depend on
    that byte."""
    for before in range(3):
        encoded, end = base64.b64encode(bytes(before) + data).decode(), before + len(data)
        text = encoded[-(-before * 4 // 3) : end * 4 // 3]
        for spelled in (text, text.translate(_URL_ALPHABET)):
            yield Spelling(spelled, before=before > 0, behind=end % 3 > 0)


def known_here(environment: Mapping[str, str], named: Collection[str] = ()) -> list[Known]:
    """Return this machine's values to redact. `named` are environment variables that hold secrets although their names
    do not suggest it."""
    found = [
        Known("env", value)
        for name, value in environment.items()
        if len(value) >= _SHORTEST
        and not _is_switch(value)
        and (name in named or (_SECRET_NAME.search(name) and not _NO_SECRET_NAME.search(name)))
    ]
    home = str(Path.home())
    if len(home) > 1:
        found.append(Known("home", home, whole=True))
    user = _user()
    if len(user) >= 3 and user.lower() not in _COMMON_NAMES:
        found.append(Known("user", user, whole=True))
    host = socket.gethostname()
    if len(host) >= 4 and host != "localhost":
        found.append(Known("host", host, whole=True))
    return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the process runs under a user id without a name
        return ""


def _is_switch(value: str) -> bool:
    return value.lower() in ("enabled", "disabled", "required", "optional", "default", "always")
