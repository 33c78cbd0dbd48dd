"""The oracle: a scripted expert that demonstrates how to work, in the harness, with nothing but its tools.

It finds its way by what it sees (the task's words, FAIL lines, listings, grep hits) and takes only the repair itself
from the reference solution. Every choice comes from its seed. After a self-summary it goes on from its own words alone,
so that a demonstration never knows more than its context holds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from etude.harness.policy import Conversation, Message, PolicyError, Role, ToolCall, Turn
from etude.harness.schema import builtin_schema
from etude.tasks.diff import parse_diff
from etude.tasks.gate import reference_diff
from etude.tasks.task import Split, Task
from etude.text.calls import format_call, numbered_lines, parse_call

CHECK_COMMAND = "python check.py"
_FILE = re.compile(r"\b[a-z_]+\.py\b")
_FUNCTION = re.compile(r"\b[a-z]+_[a-z_]+\b")
_FAIL = re.compile(r"^FAIL ([a-z_]+)\(", re.MULTILINE)
_NEXT = re.compile(r"\bnext (.+)")
_EDITED = re.compile(r"^(?:edit|Files edited so far:) (\w+)", re.MULTILINE)
"""The harness carries the edited files over a summary, whichever profile words it."""
_TOOLS = {name: builtin_schema(name).call_schema() for name in ("list", "read", "edit", "grep", "shell", "finish")}


@dataclass(frozen=True, slots=True)
class Repair:
    """One line-addressed edit."""

    file: str
    line: int
    right: str
    wrong: str


def reference_repair(task: Task) -> Repair:
    """The reference solution as a single edit; PolicyError if it is more than that."""
    patches = parse_diff(reference_diff(task))
    hunks = patches[0].hunks if len(patches) == 1 else []
    if len(hunks) != 1 or patches[0].after is None or len(hunks[0].old) != len(hunks[0].new):
        raise PolicyError(f"task {task.id}: the reference is not one line-for-line edit")
    pairs = list(enumerate(zip(hunks[0].old, hunks[0].new, strict=True)))
    changed = [(place, old, new) for place, (old, new) in pairs if old != new]
    if len(changed) != 1:
        raise PolicyError(f"task {task.id}: the reference changes {len(changed)} lines, expected 1")
    place, old, new = changed[0]
    return Repair(patches[0].after, hunks[0].start + place + 1, new.strip(), old.strip())


class OraclePolicy:
    """Solves one train task. `slip` is the chance that its first edit is a wrong one; the check
    nearly always notices, and whoever collects demonstrations keeps those that passed. `rewrites` is the chance that
    it writes the failing function anew; else it changes the wrong line alone, as people do.

    Implements the harness's Policy; tokens are counted as words unless `count` is given. For training data it is
    wrapped by the harness's RecordingPolicy, which owns the token ids.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        *,
        slip: float = 0.0,
        rewrites: float = 1.0,
        count: Callable[[str], int] | None = None,
    ) -> None:
        self._repair = reference_repair(task.require(Split.TRAIN))
        self._rng = random.Random(f"oracle/1/{task.id}/{seed}")
        self._slip = self._rng.random() < slip
        self._count = count or (lambda text: len(text.split()))
        self._checks_first = self._rng.random() < 0.85
        self._lists_first = self._rng.random() < 0.15
        self._greps = self._rng.random() < 0.75
        self._rewrites = self._rng.random() < rewrites
        self._turns = 0

    @property
    def name(self) -> str:
        return "oracle"

    def tokens(self, conversation: Conversation) -> int:
        said = sum(self._count(m.text) for m in conversation.messages if m.role is not Role.ASSISTANT)
        turns = [m.turn for m in conversation.messages if m.turn is not None]
        return said + sum(self._count(t.text) + sum(self._count(c.raw) for c in t.calls) for t in turns)

    def count(self, text: str) -> int:
        return self._count(text)

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        self._turns += 1
        seen = _read(conversation)
        if conversation.messages[-1].role is Role.USER and seen.acted:
            return self._say(f"next {self._noted(seen)}")
        return self._call(self._next(seen))

    def _noted(self, seen: _Seen) -> str:
        """What a self-summary plans. Instead of an edit it is to read the file again, which leaves less to remember;
        if that filled the context before, the one line that changes."""
        call = self._next(seen)
        if not call.startswith("edit "):
            return call
        repair = self._repair
        if not seen.continued:
            return _format("read", path=repair.file)
        return _format("edit", path=repair.file, lines=f"{repair.line} {repair.right}")

    def _say(self, text: str) -> Turn:
        return Turn(text, sampled_tokens=self._count(text), message_tokens=self._count(text))

    def _call(self, raw: str) -> Turn:
        parsed = parse_call(raw, _TOOLS)
        assert not isinstance(parsed, str), parsed
        call = ToolCall(f"{self._turns}.0", parsed[0], parsed[1], raw)
        size = self._count(raw)
        return Turn(calls=(call,), sampled_tokens=size, call_tokens=size)

    def _next(self, seen: _Seen) -> str:
        """The next call, given only what this context shows."""
        if seen.planned:
            return seen.planned
        if seen.checked_after_edit:
            if "ok" in seen.last_check.split("\n"):
                return _format("finish")
            # The first edit was the slip: what to repair is still in view, or has to be looked at again.
            return self._edit(seen, right=True) if self._repair.file in seen.read else self._look(seen)
        if seen.edited:
            return _format("shell", command=CHECK_COMMAND)
        if self._lists_first and not seen.listed:
            return _format("list")
        if seen.continued and self._repair.file in seen.read:
            # Its notes led here, and the file shows what is wrong: another check would only fill the context again.
            return self._edit(seen, right=not self._slip)
        named = seen.file is not None
        knows_what = seen.continued and seen.function is not None
        if not (seen.last_check or knows_what) and (self._checks_first or not named):
            return _format("shell", command=CHECK_COMMAND)
        if self._repair.file not in seen.read:
            return self._look(seen)
        if not (seen.last_check or knows_what):
            return _format("shell", command=CHECK_COMMAND)
        return self._edit(seen, right=not self._slip)

    def _look(self, seen: _Seen) -> str:
        """Reads the file that is known to hold the function, or goes on looking for it."""
        if seen.file is not None and seen.file not in seen.read:
            return _format("read", path=seen.file)
        # Reading one file after another is no way to search for who forgets what it read.
        if seen.function is not None and (self._greps or seen.continued) and not seen.grepped:
            return _format("grep", pattern=f"def {seen.function}")
        if not seen.listed:
            return _format("list")
        unread = [file for file in seen.files if file not in seen.read]
        if not unread:
            raise PolicyError("the function that fails is in none of the files")
        return _format("read", path=unread[0])

    def _edit(self, seen: _Seen, *, right: bool) -> str:
        """The wrong line alone, or the function's code anew, line by line: whoever reads a line beside its comment
        knows what it should be, without having to say first which one is wrong."""
        repair = self._repair
        new = {repair.line: repair.right if right else _slipped(repair, self._rng)}
        if self._rewrites:
            new = {number: line.strip() for number, line in _body(seen.read[repair.file], repair.line)} | new
        return _format("edit", path=repair.file, lines="\n".join(f"{number} {line}" for number, line in new.items()))


def _body(listing: str, inside: int) -> Iterator[tuple[int, str]]:
    """The numbered code lines under the `def` that line `inside` belongs to."""
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
class _Seen:
    """What a context shows, and nothing else."""

    function: str | None = None
    file: str | None = None
    """Known to hold the function."""
    files: tuple[str, ...] = ()
    read: dict[str, str] = field(default_factory=dict)
    """The listings of files."""
    listed: bool = False
    grepped: bool = False
    edited: bool = False
    last_check: str = ""
    checked_after_edit: bool = False
    planned: str = ""
    """The call that the last self-summary names, as long as nothing has been done since."""
    continued: bool = False
    """This context began with a self-summary."""
    acted: bool = False


def _read(conversation: Conversation) -> _Seen:
    seen = _Seen()
    for message in conversation.messages:
        if message.role is Role.USER and not seen.acted:
            _read_task(message.text, seen)
        elif message.role is Role.ASSISTANT:
            seen.acted = True
        elif message.role is Role.TOOL and message.call is not None:
            seen.planned = ""
            _read_output(message, message.call, seen)
    return seen


def _read_task(text: str, seen: _Seen) -> None:
    task, _, rest = text.partition("\n")
    if found := _FUNCTION.search(_FILE.sub("", task)):
        seen.function = found.group()
    seen.file = next((file for file in _FILE.findall(task) if file != "check.py"), None)
    if found := _NEXT.search(rest):
        seen.planned = found.group(1) if _whole(found.group(1)) else ""
        seen.continued = True
    found = _EDITED.search(rest)
    seen.edited = found is not None and found.group(1) != "none"


def _whole(planned: str) -> bool:
    """Notes that a full context cut off may end in half a call, which plans nothing."""
    parsed = parse_call(planned, _TOOLS)
    if isinstance(parsed, str):
        return False
    name, arguments = parsed
    return name != "edit" or all(text for _, text in numbered_lines(str(arguments["lines"])))


def _read_output(message: Message, call: ToolCall, seen: _Seen) -> None:
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
    elif call.name == "shell":
        seen.last_check = message.text
        seen.checked_after_edit = seen.edited
        if found := _FAIL.search(message.text):
            seen.function = found.group(1)


def _format(tool: str, **arguments: object) -> str:
    return format_call(tool, arguments, _TOOLS[tool])


def _slipped(repair: Repair, rng: random.Random) -> str:
    """A plausible wrong text for the line: one of its words or signs is another."""
    swaps = list(_swaps(repair.right, repair.wrong))
    return rng.choice(swaps) if swaps else repair.wrong


def _swaps(right: str, wrong: str) -> Iterator[str]:
    pairs = ((" < ", " > "), (" > ", " < "), (" + ", " - "), (" - ", " + "), ("min(", "max("), ("max(", "min("))
    for old, new in (*pairs, (" and ", " or "), (" or ", " and "), (" * ", " + ")):
        text = right.replace(old, new, 1)
        if text not in (right, wrong):
            yield text
