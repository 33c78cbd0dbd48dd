"""The options --chown and --chmod of COPY and ADD: finds owners, and parses modes."""

from __future__ import annotations

import re

from etude.sandbox.contract import Box, RequestRefused
from etude.sandbox.inside.users import parse_group, parse_passwd

_MAX_BYTES = 1 << 20


async def find_owner(box: Box, name: str) -> tuple[int, int]:
    """Return (user id, group id) for "user" or "user:group", by names or numbers. Number N alone stands for "N:N"."""
    user, colon, group = name.partition(":")
    people = parse_passwd(await _text(box, "/etc/passwd"))
    if user.isdecimal():
        uid = gid = int(user)
    elif user in people:
        uid, gid = people[user].uid, people[user].gid
    elif user == "root":
        uid = gid = 0
    else:
        raise ValueError(f"there is no user {user!r} in the image; there are {', '.join(sorted(people)) or 'none'}")
    if colon:
        groups = parse_group(await _text(box, "/etc/group"))
        if not group.isdecimal() and group not in groups:
            raise ValueError(f"there is no group {group!r} in the image")
        gid = int(group) if group.isdecimal() else groups[group].gid
    return uid, gid


async def _text(box: Box, path: str) -> str:
    try:
        return (await box.read_file(path, max_bytes=_MAX_BYTES)).decode("utf-8", "surrogateescape")
    except (OSError, RequestRefused):
        return ""  # An image may have no such file.


def parse_mode(text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"0?[0-7]{3,4}", text):
        raise ValueError(f"--chmod={text}: expected an octal number such as 755")
    return int(text, 8)
