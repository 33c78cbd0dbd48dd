"""The oracle: a scripted expert whose rollouts demonstrate how to work in the harness with its tools.

It decides by what the conversation shows (the instruction, FAIL lines, listings, grep hits) and takes only the repair
itself from the reference solution. All its random choices come from its seed. After a self-summary it continues from
the summary's text alone, so that a demonstration never uses knowledge that its context lacks.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from etude.harness.policy import PolicyError
from etude.harness.schema import builtin_schema
from etude.tasks.diff import parse_diff
from etude.tasks.gate import reference_diff
from etude.tasks.task import Split, Task
from etude.text.calls import format_call, numbered_lines, parse_call
from etude.trace.conversation.messages import Conversation, Message, Role, ToolCall, Turn

CHECK_COMMAND = "python check.py"
_FILE = re.compile(r"\b[a-z_]+\.py\b")
_FUNCTION = re.compile(r"\b[a-z]+_[a-z_]+\b")
_FAIL = re.compile(r"^FAIL ([a-z_]+)\(", re.MULTILINE)
_NEXT = re.compile(r"\bnext (.+)")
_EDITED = re.compile(r"^(?:edit|Files edited so far:) (\w+)", re.MULTILINE)
"""Matches the list of edited files that the harness repeats after a self-summary, as the profiles `compact` and `full`
word it."""
_SHELLS = ("shell", "bash")
"""Tools that run a command; a profile has one of them."""
_TOOLS = {name: builtin_schema(name).call_schema() for name in ("list", "read", "edit", "grep", "finish", *_SHELLS)}


@dataclass(frozen=True, slots=True)
class Repair:
    file: str
    line: int
    right: str
    wrong: str


def reference_repair(task: Task) -> Repair:
    """Return the reference as a single-line edit. Raises PolicyError if it does not change exactly one line."""
    patches = parse_diff(reference_diff(task))
    hunks = patches[0].hunks if len(patches) == 1 else []
    if len(hunks) != 1 or patches[0].after is None or len(hunks[0].old) != len(hunks[0].new):
        raise PolicyError(f"task {task.id}: expected a reference that replaces lines by as many lines in one hunk")
    pairs = list(enumerate(zip(hunks[0].old, hunks[0].new, strict=True)))
    changed = [(place, old, new) for place, (old, new) in pairs if old != new]
    if len(changed) != 1:
        raise PolicyError(f"task {task.id}: the reference changes {len(changed)} lines, expected 1")
    place, old, new = changed[0]
    return Repair(patches[0].after, hunks[0].start + place + 1, new.strip(), old.strip())


class OraclePolicy:
    """Solves one train task. Implements the harness's Policy.

    `slip` is the probability that the first edit is wrong. The check nearly always reveals the mistake, and callers
    keep only demonstrations that passed in the end. `rewrites` is the probability that the edit rewrites the whole
    failing function; otherwise it changes only the wrong line, as people do. `shell` is the profile's tool that runs
    commands.

    The oracle has no tokenizer and counts each word as one token. For training data, the harness's RecordingPolicy
    wraps it and computes the token ids.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        *,
        slip: float = 0.0,
        rewrites: float = 1.0,
        shell: str = "shell",
    ) -> None:
        self._repair = reference_repair(task.require(Split.TRAIN))
        self._rng = random.Random(f"oracle/1/{task.id}/{seed}")
        self._slip = self._rng.random() < slip
        self._checks_first = self._rng.random() < 0.85
        self._lists_first = self._rng.random() < 0.15
        self._greps = self._rng.random() < 0.75
        self._rewrites = self._rng.random() < rewrites
        self._check = _format(shell, command=CHECK_COMMAND)
        self._turns = 0

    @property
    def name(self) -> str:
        return "oracle"

    def tokens(self, conversation: Conversation) -> int:
        message_tokens = sum(self.count(m.text) for m in conversation.messages if m.role is not Role.ASSISTANT)
        turns = [m.turn for m in conversation.messages if m.turn is not None]
        return message_tokens + sum(self.count(t.text) + sum(self.count(c.raw) for c in t.calls) for t in turns)

    def count(self, text: str) -> int:
        return len(text.split())

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        self._turns += 1
        seen = _read(conversation)
        if conversation.messages[-1].role is Role.USER and seen.acted:
            return self._say(f"next {self._summary_plan(seen)}")
        return self._call(self._next(seen))

    def _summary_plan(self, seen: _ContextFacts) -> str:
        """Return the tool call that a self-summary announces: the one that `_next` chooses, unless that is an edit.

        An edit of the whole function is too long for a summary, so the first summary announces a read of the file
        instead. If the file fills up the second context too, the next summary announces an edit of only the wrong line.
        """
        call = self._next(seen)
        if not call.startswith("edit "):
            return call
        repair = self._repair
        if not seen.continued:
            return _format("read", path=repair.file)
        return _format("edit", path=repair.file, lines=f"{repair.line} {repair.right}")

    def _say(self, text: str) -> Turn:
        return Turn(text, sampled_tokens=self.count(text), message_tokens=self.count(text))

    def _call(self, raw: str) -> Turn:
        parsed = parse_call(raw, _TOOLS)
        assert not isinstance(parsed, str), parsed
        call = ToolCall(f"{self._turns}.0", parsed[0], parsed[1], raw)
        size = self.count(raw)
        return Turn(calls=(call,), sampled_tokens=size, call_tokens=size)

    def _next(self, seen: _ContextFacts) -> str:
        """Choose the next tool call, using only facts from the present context."""
        if seen.planned:
            return seen.planned
        if seen.checked_after_edit:
            if "ok" in seen.last_check.split("\n"):
                return _format("finish")
            # The first edit was wrong: repair it now if the file is still in this context, else read it again.
            return self._edit(seen, right=True) if self._repair.file in seen.read else self._search_call(seen)
        if seen.edited:
            return self._check
        if self._lists_first and not seen.listed:
            return _format("list")
        if seen.continued and self._repair.file in seen.read:
            # The summary led here, and the file shows what is wrong: another check would only fill the context again.
            return self._edit(seen, right=not self._slip)
        named = seen.file is not None
        knows_what = seen.continued and seen.function is not None
        if not (seen.last_check or knows_what) and (self._checks_first or not named):
            return self._check
        if self._repair.file not in seen.read:
            return self._search_call(seen)
        if not (seen.last_check or knows_what):
            return self._check
        return self._edit(seen, right=not self._slip)

    def _search_call(self, seen: _ContextFacts) -> str:
        """Return the next call in the search for the failing function's file, or the call that reads it."""
        if seen.file is not None and seen.file not in seen.read:
            return _format("read", path=seen.file)
        # After a summary the policy has forgotten the files it read, so reading them one by one would not find the
        # function.
        if seen.function is not None and (self._greps or seen.continued) and not seen.grepped:
            return _format("grep", pattern=f"def {seen.function}")
        if not seen.listed:
            return _format("list")
        unread = [file for file in seen.files if file not in seen.read]
        if not unread:
            raise PolicyError("the function that fails is in none of the files")
        return _format("read", path=unread[0])

    def _edit(self, seen: _ContextFacts, *, right: bool) -> str:
        """Return an edit of only the wrong line, or of every code line of the function's body. In the tasks a comment
        above each line says what it should do, so a model can rewrite the body without knowing which line is wrong."""
        repair = self._repair
        new = {repair.line: repair.right if right else _wrong_line(repair, self._rng)}
        if self._rewrites:
            new = {number: line.strip() for number, line in _body(seen.read[repair.file], repair.line)} | new
        return _format("edit", path=repair.file, lines="\n".join(f"{number} {line}" for number, line in new.items()))


def _body(listing: str, inside: int) -> Iterator[tuple[int, str]]:
    """Return the numbered lines of the function around line `inside`, without its `def` line and comments."""
    lines = [
        (int(number), text)
        for number, _, text in (line.partition(" ") for line in listing.split("\n"))
        if number.isdigit()
    ]
    heads = [number for number, text in lines if text.startswith("def ")]
    first = max(number for number in heads if number < inside)
    after = min((number for number in heads if number > inside), default=len(lines) + 1)
    return ((n, text) for n, text in lines if first < n < after and not text.strip().startswith("#"))


@dataclass(slots=True)
class _ContextFacts:
    """What the oracle knows from the messages of the present context."""

    function: str | None = None
    file: str | None = None
    """The file with the failing function; None while unknown."""
    files: tuple[str, ...] = ()
    read: dict[str, str] = field(default_factory=dict)
    """For each file that was read in this context, the output of the tool `read`: its lines with their numbers."""
    listed: bool = False
    grepped: bool = False
    edited: bool = False
    last_check: str = ""
    checked_after_edit: bool = False
    planned: str = ""
    """The call that the summary at the start of this context announced; empty after the first tool call."""
    continued: bool = False
    """Whether this context begins with the agent's own summary of the context before it."""
    acted: bool = False


def _read(conversation: Conversation) -> _ContextFacts:
    seen = _ContextFacts()
    for message in conversation.messages:
        if message.role is Role.USER and not seen.acted:
            _read_task(message.text, seen)
        elif message.role is Role.ASSISTANT:
            seen.acted = True
        elif message.role is Role.TOOL and message.call is not None:
            seen.planned = ""
            _read_output(message, message.call, seen)
    return seen


def _read_task(text: str, seen: _ContextFacts) -> None:
    task, _, rest = text.partition("\n")
    if found := _FUNCTION.search(_FILE.sub("", task)):
        seen.function = found.group()
    seen.file = next((file for file in _FILE.findall(task) if file != "check.py"), None)
    if found := _NEXT.search(rest):
        seen.planned = found.group(1) if _is_complete_call(found.group(1)) else ""
        seen.continued = True
    found = _EDITED.search(rest)
    seen.edited = found is not None and found.group(1) != "none"


def _is_complete_call(planned: str) -> bool:
    """Return whether a planned call is complete. If the context was full, the self-summary may end in half a call,
    which the oracle ignores."""
    parsed = parse_call(planned, _TOOLS)
    if isinstance(parsed, str):
        return False
    name, arguments = parsed
    return name != "edit" or all(text for _, text in numbered_lines(str(arguments["lines"])))


def _read_output(message: Message, call: ToolCall, seen: _ContextFacts) -> None:
    arguments = call.arguments or {}
    if call.name == "list":
        seen.listed = True
        seen.files = tuple(file for file in message.text.split("\n") if file.endswith(".py") and file != "check.py")
    elif call.name == "grep":
        seen.grepped = True
        if hit := re.match(r"([a-z_]+\.py):\d+ ", message.text):
            seen.file = hit.group(1)
    elif call.name == "read":
        file = str(arguments["path"])
        seen.read[file] = message.text
        if seen.function is not None and f"def {seen.function}(" in message.text:
            seen.file = file
    elif call.name == "edit":
        seen.edited = True
        seen.checked_after_edit = False
    elif call.name in _SHELLS:
        seen.last_check = message.text
        seen.checked_after_edit = seen.edited
        if found := _FAIL.search(message.text):
            seen.function = found.group(1)


def shell_of(tools: Collection[str]) -> str:
    """Return the tool that runs commands. Raises PolicyError if there is none."""
    found = [name for name in _SHELLS if name in tools]
    if not found:
        raise PolicyError(f"the oracle runs checks by one of the tools {' and '.join(_SHELLS)}, but the agent has none")
    return found[0]


def _format(tool: str, **arguments: object) -> str:
    return format_call(tool, arguments, _TOOLS[tool])


def _wrong_line(repair: Repair, rng: random.Random) -> str:
    """Return the correct line with one operator or word exchanged, or else the original wrong line."""
    swaps = list(_swaps(repair.right, repair.wrong))
    return rng.choice(swaps) if swaps else repair.wrong


def _swaps(right: str, wrong: str) -> Iterator[str]:
    pairs = ((" < ", " > "), (" > ", " < "), (" + ", " - "), (" - ", " + "), ("min(", "max("), ("max(", "min("))
    for old, new in (*pairs, (" and ", " or "), (" or ", " and "), (" * ", " + ")):
        text = right.replace(old, new, 1)
        if text not in (right, wrong):
            yield text
