"""Resolves the user that a command runs as, given by name or number as in a Dockerfile's USER, from the box's own
/etc/passwd.

`root` always has id 0. The users `agent` and `grader` exist in every box, even if its /etc/passwd does not list them.
"""

from __future__ import annotations

import os

from etude.sandbox.inside import files

USERS = {"agent": 1000, "grader": 1001}
MAX_ID = 65535
_MAX_BYTES = 1 << 20


class User:
    """A user account. `groups` are the ids of the supplementary groups."""

    __slots__ = ("gid", "groups", "home", "name", "shell", "uid")

    def __init__(
        self, name: str, uid: int, gid: int, groups: tuple[int, ...] = (), home: str = "/", shell: str = "/bin/sh"
    ) -> None:
        self.name, self.uid, self.gid = name, uid, gid
        self.groups, self.home, self.shell = groups, home, shell


class Group:
    __slots__ = ("gid", "members")

    def __init__(self, gid: int, members: frozenset[str]) -> None:
        self.gid, self.members = gid, members


def parse_passwd(text: str) -> dict[str, User]:
    """Parse /etc/passwd. Malformed lines are skipped, as the C library does; the first line of a name wins."""
    found: dict[str, User] = {}
    for fields in _fields(text, 7):
        uid, gid = _number(fields[2]), _number(fields[3])
        if uid is not None and gid is not None:
            found.setdefault(fields[0], User(fields[0], uid, gid, home=fields[5] or "/", shell=fields[6] or "/bin/sh"))
    return found


def parse_group(text: str) -> dict[str, Group]:
    """Parse /etc/group. Malformed lines are skipped; the first line of a name wins."""
    found: dict[str, Group] = {}
    for fields in _fields(text, 4):
        gid = _number(fields[2])
        if gid is not None:
            found.setdefault(fields[0], Group(gid, frozenset(name for name in fields[3].split(",") if name)))
    return found


def _fields(text: str, count: int) -> list[list[str]]:
    rows = (line.split(":") for line in text.split("\n"))
    return [row for row in rows if len(row) == count and row[0]]


def _number(text: str) -> int | None:
    """Parse an id from 0 to MAX_ID; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) <= MAX_ID else None


def resolve(wanted: str, users: dict[str, User], groups: dict[str, Group]) -> User:
    """Return the user for a name or number, optionally followed by `:group`. Raises Refused if neither the image nor
    the box defines it."""
    name, separator, group = wanted.partition(":")
    user = _find_user(name, users)
    if user is None:
        known = ", ".join(sorted({"root", *USERS, *users})[:20])
        raise files.Refused(f"there is no user {name!r} in this box; there are {known}")
    if not separator:
        extra = {other.gid for other in groups.values() if user.name in other.members} - {user.gid}
        return User(user.name, user.uid, user.gid, tuple(sorted(extra)), user.home, user.shell)
    gid = groups[group].gid if group in groups else _number(group)
    if gid is None:
        raise files.Refused(f"there is no group {group!r} in this box, which user {wanted!r} asks for")
    return User(user.name, user.uid, gid, (), user.home, user.shell)


def _find_user(name: str, users: dict[str, User]) -> User | None:
    """Return the user with this name or number; None if there is none. A number without an entry in /etc/passwd gives a
    user with group 0."""
    if name == "root":
        return User("root", 0, 0, home=users["root"].home if "root" in users else "/")
    if name in users:
        return users[name]
    uid = _number(name)
    if uid is not None:
        named = next((user_ for user_ in users.values() if user_.uid == uid), None)
        return named or User(name, uid, 0)
    return User(name, USERS[name], USERS[name], home=f"/home/{name}") if name in USERS else None


class Users:
    """The users of a box. /etc/passwd and /etc/group are read again whenever they have changed. `only` is the box's
    user id if it has a single one; otherwise it has all ids below `count`."""

    def __init__(self, default: str, only: int | None, count: int = MAX_ID + 1) -> None:
        self._only, self._count = only, count
        self._default = default or "agent"
        self._seen: tuple[object, ...] = ()
        self._users: dict[str, User] = {}
        self._groups: dict[str, Group] = {}

    def find(self, wanted: str) -> User:
        """Return the user with this name or number; "" means the image's default user. Raises Refused for an unknown
        user or an id that the box lacks."""
        self._refresh()
        user = resolve(wanted or self._default, self._users, self._groups)
        if self._only is None:
            highest = max(user.uid, user.gid, *user.groups)
            if highest < self._count:
                return user
            raise files.Refused(
                f"user {user.name!r} has an id of {highest}; this box has ids below {self._count}, more than which the "
                "host does not lend: see `etude sandbox doctor`"
            )
        if user.uid == self._only and user.gid == self._only:
            return user
        if wanted in ("", self._default):
            return User(user.name, self._only, self._only, home=user.home, shell=user.shell)
        raise files.Refused(
            f"user {wanted!r}: this box has one user only, {self._default!r}; all users are in boxes made by root, or "
            "by a user with subordinate ids"
        )

    def _refresh(self) -> None:
        seen = (_file_version("/etc/passwd"), _file_version("/etc/group"))
        if seen != self._seen:
            self._users, self._groups = parse_passwd(_text("/etc/passwd")), parse_group(_text("/etc/group"))
            self._seen = seen


def _file_version(path: str) -> tuple[int, ...]:
    """Return a value that changes whenever the file does; () if the file cannot be found."""
    try:
        info = os.stat(path)
    except OSError:
        return ()
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size


def _text(path: str) -> str:
    """Return a file's text, or "" if there is no readable regular file of at most _MAX_BYTES."""
    try:
        return files.read("/", path, _MAX_BYTES, proc=-1).decode("utf-8", "surrogateescape")
    except (OSError, files.Refused):
        return ""
