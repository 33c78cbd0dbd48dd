"""What an agent may do on the user's own machine: rules, and a user to ask where no rule decides.

Invariants: a deny rule beats every other, an ask rule beats an allow rule. What no rule decides is asked, or denied if
nobody is there to answer. A rule allows a command by its words only if the shell cannot read anything else in them, so
a rule for `git status` does not allow `git status; rm x`. What is done is exactly what was agreed to. A rule looks at a
command's words, not at its effect: to allow `make` is to allow whatever the Makefile does.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from etude.harness.external_services import Hit, Web
from etude.harness.search.name_patterns import name_pattern
from etude.sandbox.contract import RequestRefused

Kind: TypeAlias = Literal["write", "execute", "fetch"]
""""write": change a file. "execute": run a command, or type into a running one. "fetch": read from the network."""
Verdict: TypeAlias = Literal["allow", "ask", "deny"]
_OPERATORS = {";", "&&", "||", "|"}


class PermissionsError(Exception):
    """A rule cannot be parsed; the message says which, and what a rule looks like."""


class Denied(RequestRefused):
    """The user, or one of the user's rules, did not allow it; the text is for the model."""


@dataclass(frozen=True, slots=True)
class Wish:
    """An action that the agent wants to take."""

    kind: Kind
    what: str
    """The whole command, the path within the folder, or the URL."""
    shown: str = ""
    """Shown to the user as well: the diff of a write, or the running command that input is for."""
    plain: bool = True
    """False for input to a running command, whose words are not a command."""


@dataclass(frozen=True, slots=True)
class Answer:
    allowed: bool
    always: bool = False
    """Also allow what `always_rules` returns, for the rest of the session."""
    remember: bool = False
    """With `always`: also in later sessions on this folder."""
    instead: str = ""
    """The command as the user rewrote it; empty if unchanged."""
    reason: str = ""
    """What the agent is told if the answer is no."""


AskUser: TypeAlias = Callable[[Wish], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, written `kind` or `kind:pattern`. The pattern of a write rule is a glob for paths (`src/**`). That of an
    execute rule is the words that a command begins with (`git status`), or `=` and a whole command. That of a fetch
    rule is a host (`*.python.org`) or the beginning of a URL."""

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
        """Whether the rule covers the whole wish. For a line with several commands, see `Permissions.verdict`."""
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
        """Whether the rule covers a simple command, given as its words."""
        if self.kind != "execute" or not self.pattern or self.pattern.startswith("="):
            return False
        try:
            wanted = shlex.split(self.pattern)
        except ValueError:
            return False
        return words[: len(wanted)] == wanted

    def touches(self, wish: Wish) -> bool:
        """Whether the rule covers any part of the wish, as far as can be told. Used by deny and ask rules."""
        if self.allows(wish):
            return True
        if wish.kind != self.kind or wish.kind != "execute" or not wish.plain:
            return False
        found = commands_in(wish.what)
        if found is not None:
            return any(self.begins(words) for words in found)
        # What the shell makes of this command is unknown: better one question too many.
        return not self.pattern.startswith("=") and self.pattern in wish.what


@dataclass(slots=True)
class Permissions:
    """The rules of one session, and whom to ask. Without `ask`, what would be asked is denied."""

    ask: AskUser | None = None
    allow: list[Rule] = field(default_factory=list)
    deny: list[Rule] = field(default_factory=list)
    asked: list[Rule] = field(default_factory=list)
    """Rules for what must be asked even where another rule allows it."""
    remember: Callable[[list[Rule]], None] | None = None
    """Saves rules for later sessions."""
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
        """Return what may be done: the wish, or the command as the user rewrote it. Raises Denied if nothing."""
        async with self._one_question:
            return await self._agree(wish)

    async def _agree(self, wish: Wish) -> Wish:
        # Judged only now: the answer to an earlier question may have added rules.
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
    """Web access (`Outside.web`) that needs permission for each page and each search."""

    def __init__(self, web: Web, permissions: Permissions) -> None:
        self._web, self._permissions = web, permissions

    async def search(self, query: str) -> list[Hit]:
        await self._permissions.agree(Wish("fetch", f"search: {query}"))
        return await self._web.search(query)

    async def fetch(self, url: str) -> str:
        await self._permissions.agree(Wish("fetch", url))
        return await self._web.fetch(url)


def always_rules(wish: Wish) -> list[Rule]:
    """Rules that "always" adds: all files of the folder, commands that begin with these words, or this host."""
    if wish.kind == "write":
        return [Rule("write")]
    if wish.kind == "fetch":
        return [Rule("fetch", urlsplit(wish.what).hostname or wish.what)]
    found = commands_in(wish.what) if wish.plain else None
    if not found:
        return [Rule("execute", f"={wish.what}")]
    return [Rule("execute", shlex.join(words)) for words in found]


def commands_in(command: str) -> list[list[str]] | None:
    """Split a command line into the words of each simple command; None if a shell might read anything else in it:
    substitutions, redirections, groups, background jobs, assignments, several lines."""
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
    except ValueError:  # an unclosed quote
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
"""Words that, at the beginning of a command, make what follows more than its arguments."""


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
