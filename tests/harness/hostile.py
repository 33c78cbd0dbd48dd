"""Tool calls that nobody should make, and a place for commands that runs none of them and lists them all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from tests.harness.parts import SAMPLE

from etude.harness import ToolCall
from etude.harness.schema import ToolParameter, ToolSchema
from etude.harness.tools.terminal import MOST_SECONDS
from etude.harness.workspaces.terminal import FOLDER
from etude.sandbox.contract import ExecResult, Poll, RequestRefused, Terminal

FILES = {**SAMPLE, "logo.png": b"\x89PNG\0\xff", "latin.txt": b"caf\xe9\n", "empty.txt": b"", "one line": b"no end"}
HUGE = "x" * 1_100_000

paths = st.one_of(
    st.sampled_from([*FILES, "pack", ".", "", " ", "nothing.py", "pack/new.py", "calc.py/below", "/work/calc.py"]),
    st.sampled_from(
        ["..", "../x", "a/../../x", "/etc/passwd", "/work/../etc/passwd", "~/.ssh/id", "//calc.py", "/work"]
    ),
    st.sampled_from(
        ["a\0b", "\ud800", "x" * 5000, "a/" * 600 + "x", ".git/config", "__pycache__/a.pyc", "-rf", "*", "é"]
    ),
    st.text(max_size=12),
    st.lists(st.sampled_from(["..", ".", "pack", "calc.py", "", "x"]), max_size=5).map("/".join),
)
texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["min(a, b)", "value = 1\n", "", "\n", "\0", "\udfff", "return", HUGE, "- a\n> b\nx c", "^C", "^D"]
    ),
)
patterns = st.one_of(
    texts,
    st.sampled_from(
        ["/(/", "/[z-a]/", "/\\p{Nope}/", "/(a{999}){999}/", "//", "/a|/", "**", "[!", "[]", "a/**/b", "[z-a]"]
    ),
    st.text(alphabet="/()[]{}*+?|\\^$.a-", max_size=12),
)
numbers = st.one_of(st.integers(-3, 9), st.integers(), st.sampled_from([2**63, -(2**70), 10**400, 600, 601]))
numbered = st.lists(st.tuples(numbers, st.text(max_size=8)), max_size=4).map(
    lambda lines: "\n".join(f"{number} {text}" for number, text in lines)
)
_patch_lines = st.one_of(
    st.builds(
        "{}{}".format,
        st.sampled_from(["*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: ", "@@ "]),
        paths,
    ),
    st.sampled_from(
        ["*** End Patch", "*** Begin Patch", "*** End of File", "@@", "", "+new", "-value = 1", " value = 1"]
    ),
    st.builds("{}{}".format, st.sampled_from(" +-"), st.sampled_from(FILES["calc.py"].decode().splitlines())),
    st.text(max_size=10),
)
patches = st.one_of(
    texts, st.lists(_patch_lines, max_size=8).map(lambda lines: "\n".join(["*** Begin Patch", *lines, "*** End Patch"]))
)
commands = st.one_of(
    st.sampled_from(["ls", "rm -rf /", "true\0", "\ud800", "", "exit", "x\n\nEOF"]), st.text(max_size=12)
)
values = st.recursive(
    st.none() | st.booleans() | st.floats() | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
BY_NAME = {"path": paths, "target": paths, "folder": paths, "command": commands, "pattern": patterns, "patch": patches}
BY_NAME |= {"lines": numbered | texts, "seconds": numbers, "id": st.integers(0, 4) | numbers, "url": paths}


def _of(parameter: ToolParameter) -> st.SearchStrategy[object]:
    if parameter.kind == "flag":
        return st.booleans()
    return BY_NAME.get(parameter.name, numbers if parameter.kind in ("int", "number") else texts)


@st.composite
def arguments_of(draw: st.DrawFn, schema: ToolSchema) -> dict[str, object]:
    """Most as they should be; some of another type, missing, or of no parameter."""
    made: dict[str, object] = {}
    for parameter in schema.parameters:
        odd = draw(st.integers(0, 11))
        if odd > 1 if parameter.required else odd > 5:
            made[parameter.name] = draw(_of(parameter))
        elif odd == 1:
            made[parameter.name] = draw(values)
    if draw(st.integers(0, 19)) == 0:
        made[draw(st.text(max_size=6))] = draw(values)
    return made


def _patched(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


RIGHT: list[tuple[str, dict[str, object]]] = [
    ("read", {"path": "calc.py"}),
    ("read", {"path": "check.py", "first": 1, "last": 2}),
    ("edit", {"path": "calc.py", "lines": "3 return max(a, b)\n1 # more"}),
    ("edit", {"path": "/work/pack/other.py", "lines": "2 "}),
    ("replace", {"path": "calc.py", "old": "min", "new": "max"}),
    ("replace", {"path": "pack/other.py", "old": "e", "new": "", "all": True}),
    ("patch", {"patch": _patched("*** Update File: calc.py", "-    return min(a, b)", "+    return max(a, b)")}),
    ("patch", {"patch": _patched("*** Update File: calc.py", "*** Move to: pack", "-x")}),
    ("patch", {"patch": _patched("*** Update File: calc.py", "*** Move to: calc.py/new", "@@", "+x")}),
    ("patch", {"patch": _patched("*** Add File: new/a", "+x", "*** Add File: new", "+y")}),
    ("patch", {"patch": _patched("*** Add File: new", "+x", "*** Add File: new/a", "+y")}),
    ("patch", {"patch": _patched("*** Delete File: calc.py", "*** Add File: calc.py/a", "+y")}),
    ("patch", {"patch": _patched("*** Delete File: pack/other.py", "*** Add File: pack", "+y")}),
    ("patch", {"patch": _patched("*** Add File: __pycache__/a", "+y", "*** Delete File: empty.txt")}),
    ("write", {"path": "new/deep/file", "text": "x"}),
    ("write", {"path": "empty.txt", "text": HUGE}),
    ("write", {"path": "empty.txt/x", "text": ""}),
    ("move", {"path": "calc.py", "target": "calc.py/x"}),
    ("move", {"path": "empty.txt", "target": "pack"}),
    ("move", {"path": "logo.png", "target": "empty.txt"}),
    ("move", {"path": "one line", "target": ".git/hooks/post-checkout"}),
    ("delete", {"path": "pack/other.py"}),
    ("bash", {"command": "sleep 9", "background": True, "seconds": 0}),
    ("job_input", {"id": 1, "text": "yes"}),
    ("job", {"id": 1}),
    ("job_kill", {"id": 1}),
]


def calls_of(schemas: Mapping[str, ToolSchema]) -> st.SearchStrategy[ToolCall]:
    known = st.sampled_from(sorted(schemas)).flatmap(
        lambda name: arguments_of(schemas[name]).map(lambda arguments: ToolCall("1", name, arguments, _raw(arguments)))
    )
    unknown = st.builds(ToolCall, st.just("1"), st.text(max_size=9), st.none() | st.just({}), st.text(max_size=9))
    right = st.sampled_from(RIGHT).map(lambda call: ToolCall("1", *call, _raw(call[1])))
    return st.integers(0, 19).flatmap(lambda odd: unknown if odd == 0 else right if odd < 8 else known)


def _raw(arguments: dict[str, object]) -> str:
    return json.dumps(arguments, default=str)[:200]


def asked_to_run(call: ToolCall) -> str | None:
    """The command of a call that asks for one as it should, by the words of the tools' data files alone."""
    arguments = {name: value for name, value in (call.arguments or {}).items() if value is not None}
    command, seconds, background = (arguments.get(name) for name in ("command", "seconds", "background"))
    if call.name not in ("shell", "bash") or not isinstance(command, str) or not _is_unicode(command):
        return None
    if call.name == "shell":
        return command.replace("\0", "") if (call.arguments or {}).keys() == {"command"} else None
    fits = (call.arguments or {}).keys() <= {"command", "seconds", "background"}
    fits = fits and (background is None or isinstance(background, bool))
    fits = fits and (seconds is None or (type(seconds) is int and 0 <= seconds <= MOST_SECONDS))
    return command.replace("\0", "") if fits else None


def _is_unicode(text: str) -> bool:
    return not any(0xD800 <= ord(letter) < 0xE000 for letter in text)


class Nowhere:
    """A Runner and the Place of its terminals: lists what it is asked to run, and runs nothing."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.written: dict[str, bytes] = {}
        self.typed: list[bytes] = []

    async def run(
        self, files: Mapping[str, bytes], command: str, *, timeout: float
    ) -> tuple[ExecResult, Mapping[str, bytes]]:
        self.ran.append(command)
        return ExecResult(0, b"\xff done\n", b"", 0.0), files

    async def enter(self, files: Mapping[str, bytes]) -> Nowhere:
        return self

    async def read_back(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        return files

    async def close(self) -> None: ...

    async def start(
        self, command: list[str], *, timeout: float, cwd: str | None, env: dict[str, str], terminal: Terminal
    ) -> _Silent:
        if len(command) > 5:  # the driver, its key and its folder
            return _Shell(self, command[-2])
        self.ran.append(command[-1])
        return _Silent(self)

    async def write_file(self, path: str, data: bytes) -> None:
        self.written[path] = data


class _Silent:
    """A job that says nothing and goes on."""

    id = 1

    def __init__(self, place: Nowhere) -> None:
        self.place = place
        self.code: int | None = None
        self.said = b""

    async def poll(self, *, wait: float = 0.0) -> Poll:
        said, self.said = self.said, b""
        return Poll(said, 0, self.code)

    async def write(self, data: bytes) -> None:
        if self.code is not None:
            raise RequestRefused("it has ended")
        self.place.typed.append(data)

    async def close_stdin(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...

    async def kill(self) -> None:
        self.code = 137


class _Shell(_Silent):
    """Ends every command at once."""

    def __init__(self, place: Nowhere, key: str) -> None:
        super().__init__(place)
        self.key = key
        self.said = self._mark()

    def _mark(self) -> bytes:
        return f"\n\x01{self.key} 0 /work\x02".encode()

    async def write(self, data: bytes) -> None:
        key, _, name = data.decode().strip().partition(":")
        assert key == self.key
        self.place.ran.append(self.place.written[f"{FOLDER}/{key}/{name}"].decode())
        self.said += self._mark()


def snapshot(folder: Any) -> dict[str, object]:
    """Every file, folder and link below, with what is in it and how it may be used."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes(),
        )
        for path in folder.rglob("*")
    }
