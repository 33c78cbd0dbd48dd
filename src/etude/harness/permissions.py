"""Permissions of an agent on the user's own machine: rules, and a question to the user if no rule decides.

Invariants: a deny rule takes precedence over all others, and an ask rule over an allow rule. If no rule decides, the
user is asked; if nobody can be asked, the action is denied. The agent takes exactly the action that was allowed. Allow
rules for a command's first words apply only to a line of simple commands, and each of these must be allowed: a rule for
`git status` does not allow `git status; rm x`. A rule checks the words of a command, not its effect: allowing `make`
allows everything in the Makefile.
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
"""Kind of an action that needs permission. "write": change a file. "execute": run a command, or type into a running
one. "fetch": read a page or search the web."""
Verdict: TypeAlias = Literal["allow", "ask", "deny"]
_OPERATORS = {";", "&&", "||", "|"}


class PermissionsError(Exception):
    """A rule cannot be parsed, or the file of remembered rules cannot be read or written. The message says why."""


class Denied(RequestRefused):
    """The user, or one of the user's rules, did not allow an action. The message is for the model."""


@dataclass(frozen=True, slots=True)
class RequestedAction:
    kind: Kind
    what: str
    """What the action is about. "write": the path within the folder. "execute": the complete command, or the text typed
    into a running one. "fetch": the URL, or "search: " followed by the query."""
    shown: str = ""
    """Details to show to the user: the diff of a write, or the running command that receives the input."""
    plain: bool = True
    """For "execute": whether `what` is a command. False if it is input to a running command."""


@dataclass(frozen=True, slots=True)
class Answer:
    allowed: bool
    always: bool = False
    """Whether to add the rules from `always_rules`, which allow similar actions for the rest of the session."""
    remember: bool = False
    """With `always`: whether these rules are also stored, for later sessions on this folder."""
    instead: str = ""
    reason: str = ""


AskUser: TypeAlias = Callable[[RequestedAction], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A permission rule, written as `kind` or `kind:pattern`.

    The pattern of a write rule is a glob for paths (`src/**`). The pattern of an execute rule is the first words of a
    command (`git status`), or `=` and a complete command. The pattern of a fetch rule is a host (`*.python.org`) or the
    beginning of a URL.
    """

    kind: Kind
    pattern: str = ""

    @classmethod
    def parse(cls, text: str) -> Rule:
        kind, _, pattern = text.strip().partition(":")
        for known in get_args(Kind):
            if kind.strip() == known:
                return cls(known, pattern.strip())
        raise PermissionsError(
            f"{text!r} is not a rule: expected write, execute or fetch, optionally with a pattern, such as "
            "'write:src/**', 'execute:git status' or 'fetch:docs.python.org'"
        )

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}" if self.pattern else self.kind

    def allows(self, action: RequestedAction) -> bool:
        """Return whether this rule alone covers the whole action. For a rule with the first words of a command this is
        always false: a line can contain several commands, so `Permissions.verdict` checks each of them."""
        if action.kind != self.kind:
            return False
        if not self.pattern:
            return True
        if self.kind == "write":
            return name_pattern(self.pattern).fullmatch(action.what) is not None
        if self.kind == "fetch":
            return _address(self.pattern, action.what)
        return self.pattern == f"={action.what}"

    def begins(self, words: list[str]) -> bool:
        """Return whether the rule's pattern is the beginning of a simple command, given as a list of words."""
        if self.kind != "execute" or not self.pattern or self.pattern.startswith("="):
            return False
        try:
            wanted = shlex.split(self.pattern)
        except ValueError:
            return False
        return words[: len(wanted)] == wanted

    def touches(self, action: RequestedAction) -> bool:
        """Return whether the rule may cover any part of the action. Used for deny and ask rules."""
        if self.allows(action):
            return True
        if action.kind != self.kind or action.kind != "execute" or not action.plain:
            return False
        found = commands_in(action.what)
        if found is not None:
            return any(self.begins(words) for words in found)
        # The shell may run more than can be parsed here, so a rule counts if its text occurs anywhere in the command.
        return not self.pattern.startswith("=") and self.pattern in action.what


@dataclass(slots=True)
class Permissions:
    ask: AskUser | None = None
    """Callback that asks the user. If None, actions that need a question are denied."""
    allow: list[Rule] = field(default_factory=list)
    deny: list[Rule] = field(default_factory=list)
    asked: list[Rule] = field(default_factory=list)
    """Rules for actions about which the user is always asked, even if another rule allows them."""
    remember: Callable[[list[Rule]], None] | None = None
    """Callback that stores rules for later sessions; None if they are not stored."""
    _one_question: asyncio.Lock = field(default_factory=asyncio.Lock)

    def verdict(self, action: RequestedAction) -> Verdict:
        if any(rule.touches(action) for rule in self.deny):
            return "deny"
        if any(rule.touches(action) for rule in self.asked):
            return "ask"
        if any(rule.allows(action) for rule in self.allow):
            return "allow"
        found = commands_in(action.what) if action.kind == "execute" and action.plain else None
        if found and all(any(rule.begins(words) for rule in self.allow) for words in found):
            return "allow"
        return "ask"

    async def agree(self, action: RequestedAction) -> RequestedAction:
        """Check an action against the rules, and ask the user if they require it. Return the allowed action, whose
        command the user may have rewritten. Raises Denied."""
        async with self._one_question:
            return await self._agree(action)

    async def _agree(self, action: RequestedAction) -> RequestedAction:
        # Decided under the lock, because the answer to an earlier question may have added rules.
        verdict = self.verdict(action)
        if verdict == "allow":
            return action
        if verdict == "deny":
            raise Denied(
                f"a rule of the user's does not allow {_named(action)}; find another way, or say what you need"
            )
        if self.ask is None:
            raise Denied(f"{_named(action)} needs the user's permission, and nobody can be asked; do without it")
        answer = await self.ask(action)
        if not answer.allowed:
            reason = f": {answer.reason}" if answer.reason else ""
            raise Denied(f"the user said no to {_named(action)}{reason}")
        if answer.always:
            rules = always_rules(action)
            self.allow += rules
            if answer.remember and self.remember is not None:
                self.remember(rules)
        return replace(action, what=answer.instead) if answer.instead else action


class AskedWeb:
    def __init__(self, web: Web, permissions: Permissions) -> None:
        self._web, self._permissions = web, permissions

    async def search(self, query: str) -> list[Hit]:
        await self._permissions.agree(RequestedAction("fetch", f"search: {query}"))
        return await self._web.search(query)

    async def fetch(self, url: str) -> str:
        await self._permissions.agree(RequestedAction("fetch", url))
        return await self._web.fetch(url)


def always_rules(action: RequestedAction) -> list[Rule]:
    """Return the rules that the answer "always" to this action adds. They allow all writes in the folder, all commands
    that begin with this command's words, or all pages of this host. A command that `commands_in` cannot split, or an
    input to a command, gets a rule for exactly this text."""
    if action.kind == "write":
        return [Rule("write")]
    if action.kind == "fetch":
        return [Rule("fetch", urlsplit(action.what).hostname or action.what)]
    found = commands_in(action.what) if action.plain else None
    if not found:
        return [Rule("execute", f"={action.what}")]
    return [Rule("execute", shlex.join(words)) for words in found]


def commands_in(command: str) -> list[list[str]] | None:
    """Split a command line into simple commands, and return each as a list of words.

    Return None if the line contains anything else: substitutions, redirections, groups, background jobs, assignments,
    several lines, or a command that begins with one of _WORDS_OF_THE_SHELL.
    """
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
"""First words with which a command does more than its words say: they begin a compound command (`if`), run another
command (`exec`, `env`) or change what later commands do (`alias`, `trap`). If a line contains such a command, allow
rules for a command's first words do not apply to the line."""


def _address(pattern: str, address: str) -> bool:
    if "/" in pattern:
        wanted, found = urlsplit(pattern), urlsplit(address)
        return wanted[:2] == found[:2] and found.path.startswith(wanted.path)
    return fnmatchcase((urlsplit(address).hostname or "").lower(), pattern.lower())


def _named(action: RequestedAction) -> str:
    if action.kind == "write":
        return f"changing {action.what}"
    if action.kind == "fetch":
        return f"fetching {action.what}"
    return f"the command {action.what!r}" if action.plain else f"the input {action.what!r}"
