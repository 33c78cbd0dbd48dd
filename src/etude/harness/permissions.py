"""What an agent may do to the user's own machine: rules, and somebody to ask where none decides.

Invariants: a rule that denies beats every other, one that asks beats one that allows; what no rule decides is asked,
and denied where nobody is there to answer. A command is allowed by its words only if the shell can make nothing else of
them, so `git status; rm x` is not allowed by a rule for `git status`. What was agreed to is exactly what is done. A
rule looks at the words of a command, not at what the command does: to allow `make` is to allow what the Makefile says.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from etude.harness.outside import Hit, Web
from etude.harness.tools.glob import name_pattern
from etude.sandbox.contract import RequestRefused

Kind: TypeAlias = Literal["write", "execute", "fetch"]
"""write: change a file; execute: run a command, or type into one that runs; fetch: read from the network."""
Verdict: TypeAlias = Literal["allow", "ask", "deny"]
_OPERATORS = {";", "&&", "||", "|"}


class PermissionsError(Exception):
    """A rule that cannot be read: says which, and what one looks like."""


class Denied(RequestRefused):
    """The user, or a rule of the user's, did not allow it; the text is for the model."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the agent wants to do."""

    kind: Kind
    what: str
    """The whole command, the path within the folder, or the address."""
    shown: str = ""
    """With write, the difference that it would make; with input for a command, the command."""
    plain: bool = True
    """False for input to a command that runs: its words are no command."""


@dataclass(frozen=True, slots=True)
class Answer:
    allowed: bool
    always: bool = False
    """Also for what `always_rules` says, as long as the session lasts."""
    remember: bool = False
    """With `always`: in later sessions on this folder too."""
    instead: str = ""
    """The command that the user made of it."""
    reason: str = ""
    """What the agent is told with a no."""


AskUser: TypeAlias = Callable[[Wish], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Rule:
    """`kind`, or `kind:pattern`. The pattern of write is a path as glob takes it (`src/**`), that of execute the words
    that a command begins with (`git status`) or, after `=`, a whole command, that of fetch a host (`*.python.org`) or
    the beginning of an address."""

    kind: Kind
    pattern: str = ""

    @classmethod
    def parse(cls, text: str) -> Rule:
        kind, _, pattern = text.strip().partition(":")
        for known in get_args(Kind):
            if kind.strip() == known:
                return cls(known, pattern.strip())
        raise PermissionsError(
            f"{text!r} is no rule: expected write, execute or fetch, or one with a pattern, such as "
            "'write:src/**', 'execute:git status' or 'fetch:docs.python.org'"
        )

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}" if self.pattern else self.kind

    def allows(self, wish: Wish) -> bool:
        """Whether it covers all of the wish; of a command of several, see `Permissions`."""
        if wish.kind != self.kind:
            return False
        if not self.pattern:
            return True
        if self.kind == "write":
            return name_pattern(self.pattern).fullmatch(wish.what) is not None
        if self.kind == "fetch":
            return _address(self.pattern, wish.what)
        return self.pattern == f"={wish.what}"

    def begins(self, words: list[str]) -> bool:
        """Whether it covers a simple command."""
        if self.kind != "execute" or not self.pattern or self.pattern.startswith("="):
            return False
        try:
            wanted = shlex.split(self.pattern)
        except ValueError:
            return False
        return words[: len(wanted)] == wanted

    def touches(self, wish: Wish) -> bool:
        """Whether it covers any part of the wish, as far as that can be told: for rules that deny or ask."""
        if self.allows(wish):
            return True
        if wish.kind != self.kind or wish.kind != "execute" or not wish.plain:
            return False
        found = commands_in(wish.what)
        if found is not None:
            return any(self.begins(words) for words in found)
        # Of what the shell makes of the rest nothing is known: better one question too many.
        return not self.pattern.startswith("=") and self.pattern in wish.what


@dataclass(slots=True)
class Permissions:
    """The rules of one session, and whom to ask. Without `ask`, what would be asked is denied."""

    ask: AskUser | None = None
    allow: list[Rule] = field(default_factory=list)
    deny: list[Rule] = field(default_factory=list)
    asked: list[Rule] = field(default_factory=list)
    """To be asked about even where another rule allows it."""
    remember: Callable[[list[Rule]], None] | None = None
    """Keeps rules for later sessions."""
    _one_question: asyncio.Lock = field(default_factory=asyncio.Lock)

    def verdict(self, wish: Wish) -> Verdict:
        if any(rule.touches(wish) for rule in self.deny):
            return "deny"
        if any(rule.touches(wish) for rule in self.asked):
            return "ask"
        if any(rule.allows(wish) for rule in self.allow):
            return "allow"
        found = commands_in(wish.what) if wish.kind == "execute" and wish.plain else None
        if found and all(any(rule.begins(words) for rule in self.allow) for words in found):
            return "allow"
        return "ask"

    async def agree(self, wish: Wish) -> Wish:
        """What may be done: the wish, or the command that the user made of it. Denied if nothing may."""
        async with self._one_question:
            return await self._agree(wish)

    async def _agree(self, wish: Wish) -> Wish:
        # Only now: the answer to an earlier question may be one for always.
        verdict = self.verdict(wish)
        if verdict == "allow":
            return wish
        if verdict == "deny":
            raise Denied(f"a rule of the user's does not allow {_named(wish)}; find another way, or say what you need")
        if self.ask is None:
            raise Denied(f"{_named(wish)} needs the user's agreement, and nobody is there to give it; do without it")
        answer = await self.ask(wish)
        if not answer.allowed:
            reason = f": {answer.reason}" if answer.reason else ""
            raise Denied(f"the user said no to {_named(wish)}{reason}")
        if answer.always:
            rules = always_rules(wish)
            self.allow += rules
            if answer.remember and self.remember is not None:
                self.remember(rules)
        return replace(wish, what=answer.instead) if answer.instead else wish


class AskedWeb:
    """A way to the web (`Outside.web`), each page and each search of it after a yes."""

    def __init__(self, web: Web, permissions: Permissions) -> None:
        self._web, self._permissions = web, permissions

    async def search(self, query: str) -> list[Hit]:
        await self._permissions.agree(Wish("fetch", f"search: {query}"))
        return await self._web.search(query)

    async def fetch(self, url: str) -> str:
        await self._permissions.agree(Wish("fetch", url))
        return await self._web.fetch(url)


def always_rules(wish: Wish) -> list[Rule]:
    """What a yes for always allows: all files of the folder, commands that begin with these words, this host."""
    if wish.kind == "write":
        return [Rule("write")]
    if wish.kind == "fetch":
        return [Rule("fetch", urlsplit(wish.what).hostname or wish.what)]
    found = commands_in(wish.what) if wish.plain else None
    if not found:
        return [Rule("execute", f"={wish.what}")]
    return [Rule("execute", shlex.join(words)) for words in found]


def commands_in(command: str) -> list[list[str]] | None:
    """The words of each simple command in a line, where a shell can read nothing else in it; None where it might:
    substitutions, redirections, groups, jobs, assignments, several lines."""
    command = command.strip()
    if any(sign in command for sign in "$`<>(){}\\#!") or any(ord(sign) < 32 or ord(sign) == 127 for sign in command):
        return None
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word in _OPERATORS:
                found.append([])
            elif set(word) <= set(";&|"):
                return None
            else:
                found[-1].append(word)
    except ValueError:  # a quote that nothing closes
        return None
    if not all(found) or any(_assigns(words[0]) for words in found):
        return None
    return found


def rules_of(texts: Iterable[str]) -> list[Rule]:
    return [Rule.parse(text) for text in texts]


def _assigns(word: str) -> bool:
    return "=" in word or word in _WORDS_OF_THE_SHELL


_WORDS_OF_THE_SHELL = {
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "function", "time",
    "coproc", "select", "eval", "exec", "source", ".", "alias", "trap", "command", "builtin", "env", "[[", "!",
}  # fmt: skip
"""At the beginning of a command: what follows is not just its arguments."""


def _address(pattern: str, address: str) -> bool:
    if "/" in pattern:
        wanted, found = urlsplit(pattern), urlsplit(address)
        return wanted[:2] == found[:2] and found.path.startswith(wanted.path)
    return fnmatchcase((urlsplit(address).hostname or "").lower(), pattern.lower())


def _named(wish: Wish) -> str:
    if wish.kind == "write":
        return f"changing {wish.what}"
    if wish.kind == "fetch":
        return f"fetching {wish.what}"
    return f"the command {wish.what!r}" if wish.plain else f"the input {wish.what!r}"
