"""The tool over real linters and over one of our own, on the host: what is new, what is old, what gave no answer."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop
from tests.harness.lints.parts import LINTER, SCRIPT, lints, shouting
from tests.harness.parts import Bench

from etude.harness import (
    Answer,
    FolderWorkspace,
    OverlayWorkspace,
    Permissions,
    RequestedAction,
    Toolbox,
    ToolCall,
)
from etude.harness.lints import Diagnostic
from etude.harness.lints.compare import sorted_problems
from etude.harness.parallel import CallScope

NODE = Path("~/.cache/etude/test-tools/node_modules/.bin").expanduser()
"""Where scripts/test-tools.sh puts tsc and eslint."""
FILES = {"lint.sh": SCRIPT, "a.txt": b"good\nbad one\n", "in/b.txt": b"fine\n"}


class Host:
    """A folder of the user's, who agrees to everything and notes it."""

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        self.asked: list[str] = []
        self.workspace = FolderWorkspace(folder, Permissions(self.agree))

    async def agree(self, wish: RequestedAction) -> Answer:
        if wish.kind == "execute":
            self.asked.append(wish.what)
        return Answer(True)


Lay = Callable[[Mapping[str, bytes]], tuple[Host, Toolbox]]


@pytest.fixture
def lay(tmp_path: Path) -> Iterator[Lay]:
    """Makes the files the user's folder, and a toolbox with our linter over it."""
    hosts: list[Host] = []

    def laid(files: Mapping[str, bytes]) -> tuple[Host, Toolbox]:
        hosts.append(Host(tmp_path, files))
        return hosts[0], shouting(hosts[0].workspace)

    yield laid
    for host in hosts:
        asyncio.run(host.workspace.close())


@in_loop
async def test_new_ones_are_told_first_and_equal_files_are_not_looked_at_again(lay: Lay) -> None:
    host, toolbox = lay(FILES)
    await host.workspace.write("a.txt", b"good\n\nbad one\nbad two\n")
    told = "New problems: 1\na.txt:4:1 error bad two [shout bad]\n"
    older = "Older problems, which were there when you began: 1 in 1 files"
    assert await lints(toolbox) == told + older
    assert len(host.asked) == 1, "both states, asked once"
    assert await lints(toolbox, older=True) == f"{told}{older}\na.txt:3:1 error bad one [shout bad]"
    assert len(host.asked) == 1
    await host.workspace.write("a.txt", b"good\n")
    assert await lints(toolbox) == "No new problems from shout."
    assert await host.workspace.files() == ["a.txt", "in/b.txt", "lint.sh"], "what it left is not seen"


@in_loop
async def test_a_path_narrows_what_is_looked_at(lay: Lay) -> None:
    host, toolbox = lay(FILES)
    await host.workspace.write("in/b.txt", b"bad three\n")
    await host.workspace.write("in/new.txt", b"bad four\n")
    assert await lints(toolbox, path="a.txt") == (
        "No new problems from shout.\nOlder problems, which were there when you began: 1 in 1 files"
    )
    assert (await lints(toolbox, path="in")).split("\n") == [
        "New problems: 2",
        "in/b.txt:1:1 error bad three [shout bad]",
        "in/new.txt:1:1 error bad four [shout bad]",
    ]
    assert await lints(toolbox, path="in/new.txt") == "New problems: 1\nin/new.txt:1:1 error bad four [shout bad]"
    assert await lints(toolbox, path="in/no.txt") == "There is no file 'in/no.txt'."
    assert await lints(toolbox, path="../..") == "'../..' is not a path inside the workspace."

    await host.workspace.write("in/other.md", b"bad five\n")
    assert (await lints(toolbox, path="in/other.md")).startswith("Nothing for in/other.md configures a linter")


@in_loop
async def test_a_linter_of_projects_sees_what_broke_elsewhere(lay: Lay) -> None:
    host, _ = lay(FILES)
    toolbox = shouting(host.workspace, LINTER.replace('"files"', '"project"'))
    await host.workspace.write("in/b.txt", b"bad three\n")
    assert (await lints(toolbox, path="a.txt")).split("\n") == [
        "No new problems from shout.",
        "New problems outside of a.txt: 1",
        "Older problems, which were there when you began: 1 in 1 files",
    ]


@in_loop
async def test_configured_since_the_start_makes_everything_new(lay: Lay) -> None:
    host, toolbox = lay({"a.txt": FILES["a.txt"]})
    assert (await lints(toolbox)).startswith("Nothing for . configures a linter that is known here (shout).")
    await host.workspace.write("lint.sh", SCRIPT)
    assert await lints(toolbox) == "New problems: 1\na.txt:2:1 error bad one [shout bad]"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo words >&2; exit 3", "shout gave no answer: exit code 3: words."),
        ("exit 2", "shout gave no answer: exit code 2."),
        ("echo 'no problem in here'; exit 1", "shout gave no answer: exit code 1: no problem in here."),
        ("kill -9 $$ 2>&-", "shout gave no answer: exit code 137"),
        ("exit 127", "shout gave no answer: lint.sh configures it, but it is not installed."),
        ("yes | head -c 1500000", "shout gave no answer: its output exceeded the size limit."),
        ("sleep 1000 & sleep 1000", "shout gave no answer: it reached its limit of 1 s."),
        ("cd /; echo $OLDPWD/a.txt is odd >&2; exit 9", "shout gave no answer: exit code 9: a.txt is odd."),
        (r"printf 'a.txt:1:1: error: \377\0\033m\n'; exit 1", "a.txt:1:1 error \N{REPLACEMENT CHARACTER} m [shout]"),
        ("echo '/etc/passwd:1:1: error: outside'; exit 1", "No new problems from shout."),
        ("echo '../../x:1:1: error: outside'; exit 1", "No new problems from shout."),
    ],
)  # fmt: skip
@in_loop
async def test_whatever_a_linter_does_is_told(lay: Lay, script: str, told: str) -> None:
    host, _ = lay({**FILES, "a.txt": b"good\n", "lint.sh": b"exit 0\n"})
    toolbox = shouting(host.workspace, LINTER.replace("20.0", "1.0"))
    await host.workspace.write("lint.sh", script.encode())
    output = await lints(toolbox)
    assert output.split("\n")[-1 if "New problems" in output else 0].startswith(told)


@in_loop
async def test_without_an_answer_for_the_start_older_problems_may_count_as_new(lay: Lay) -> None:
    host, toolbox = lay({**FILES, "lint.sh": b"exit 3\n"})
    await host.workspace.write("lint.sh", SCRIPT)
    assert (await lints(toolbox)).split("\n") == [
        "shout gave no answer for the files as you found them, so older problems count as new: exit code 3.",
        "New problems: 1",
        "a.txt:2:1 error bad one [shout bad]",
    ]


@in_loop
async def test_a_linter_that_stops_at_a_problem_is_told(lay: Lay) -> None:
    host, _ = lay(FILES)
    toolbox = shouting(host.workspace, LINTER.replace("found = [1]", "found = []\nstopped = [1]"))
    assert (await lints(toolbox)).startswith("shout stopped at these problems and did not check the rest.\n")
    await host.workspace.write("a.txt", b"good\n")
    assert (await lints(toolbox)).split("\n") == [
        "shout did not check all of the files as you found them, so older problems may count as new.",
        "No new problems from shout.",
    ]


@in_loop
async def test_floods_of_problems_are_bounded_and_keep_their_order(lay: Lay) -> None:
    host, toolbox = lay({**FILES, "a.txt": b"bad\n"})
    await host.workspace.write("a.txt", b"bad\n" * 9_000)
    output = (await lints(toolbox)).split("\n")
    assert output[0] == "New problems: 8999"
    assert [line.partition(" ")[0] for line in output[1:101]] == [f"a.txt:{number}:1" for number in range(2, 102)]
    assert output[101].endswith("more)")


@in_loop
async def test_a_user_who_refuses_and_a_workspace_without_commands(tmp_path: Path, lay: Lay) -> None:
    lay(FILES)
    assert await lints(shouting(OverlayWorkspace(FILES))) == "There is no shell in this workspace."
    said = await lints(shouting(FolderWorkspace(tmp_path, Permissions())))
    assert said.startswith("The workspace refused: the command ")
    assert "needs the user's permission" in said


def test_calls_beside_it_may_read_but_not_write(tmp_path: Path) -> None:
    bench = shouting(OverlayWorkspace(FILES))
    assert bench.scope(ToolCall("1", "lints", {}, "{}")) == CallScope("read")
    assert bench.scope(ToolCall("1", "lints", {"path": "in"}, "{}")) == CallScope("read"), (
        "it looks at more than it tells"
    )


def test_in_order_is_by_place() -> None:
    def at(path: str, line: int, column: int, linter: str) -> Diagnostic:
        return Diagnostic(path, line, column, "error", "E", "m", linter)

    problems = [at("a", 1, 1, "x"), at("a", 1, 1, "y"), at("a", 2, 1, "x"), at("a", 10, 1, "x"), at("b", 1, 1, "x")]
    assert sorted_problems([*reversed(problems), *problems]) == problems


PYTHON = {
    "pyproject.toml": b"[tool.ruff.lint]\nselect = ['E', 'F']\n[tool.mypy]\nstrict = true\n",
    "a.py": b"import os\n\n\ndef add(one: int, two: int) -> int:\n    return str(one + two)\n",
    ".gitignore": b"build/\n",
    "build/made.py": b"import os\n",
}


@in_loop
async def test_ruff_and_mypy(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    host, _ = lay(PYTHON)
    toolbox = Bench(host.workspace).toolbox
    text = b"# first\n" + PYTHON["a.py"] + b"\n\nimport sys\nsum = add('1', 2)\n"
    await host.workspace.write("a.py", text)
    assert (await lints(toolbox)).split("\n") == [
        "New problems: 3",
        "a.py:9:1 warning Module level import not at top of file [ruff E402]",
        "a.py:9:8 warning `sys` imported but unused [ruff F401]",
        'a.py:10:11 error Argument 1 to "add" has incompatible type "str"; expected "int" [mypy arg-type]',
        "Older problems, which were there when you began: 2 in 1 files",
    ]
    # As many bytes as before, within the same second: a cache that trusts sizes and times would not see it.
    await host.workspace.write("a.py", text.replace(b"'1', 2", b"11 , 2"))
    assert "mypy" not in await lints(toolbox)


@in_loop
async def test_settings_that_are_broken_are_told_in_one_line(
    tmp_path: Path, lay: Lay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    host, _ = lay({"a.py": b"x = 1\n", "ruff.toml": b""})
    toolbox = Bench(host.workspace).toolbox
    await host.workspace.write("ruff.toml", b"line-length = 'long'\n")
    output = await lints(toolbox)
    assert output.startswith(
        "ruff gave no answer: exit code 2: ruff failed Cause: Failed to load configuration `ruff.toml`"
    )
    assert output.count("\n") == 0
    assert str(tmp_path) not in output


OTHERS = {
    "tsc": (
        {"tsconfig.json": b'{"compilerOptions": {"strict": true, "types": []}}', "a.ts": b'const n: number = "x";\n'},
        ("a.ts", b'const m: string = 1;\n'),
        "a.ts:1:7 error Type 'number' is not assignable to type 'string'. [tsc TS2322]",
    ),
    "eslint": (
        {"eslint.config.mjs": b'export default [{ rules: { eqeqeq: "warn" } }];\n', "a.js": b"if (1 == 2) throw 1;\n"},
        ("a.js", b"if (3 != 4) throw 5;\n"),
        "a.js:1:7 warning Expected '!==' and instead saw '!='. [eslint eqeqeq]",
    ),
    "go": (
        {"go.mod": b"module m\ngo 1.19\n", "b.go": b'package m\nimport "fmt"\n\nfunc F() { fmt.Printf("%d", "x") }\n'},
        ("a.go", b'package m\n\nimport "fmt"\n\nfunc G() { fmt.Printf("%d", "y") }\n'),
        'arg "y" of wrong type string [go vet printf]',
    ),
    "cargo": (
        {
            "Cargo.toml": b'[workspace]\nmembers = ["one"]\n',
            "one/Cargo.toml": b'[package]\nname = "one"\nversion = "0.1.0"\nedition = "2021"\n',
            "one/src/lib.rs": b"fn unused() {}\n",
        },
        ("one/src/lib.rs", b"pub fn f() -> u8 {\n    let n = 1;\n    2\n}\n"),
        "one/src/lib.rs:2:9 warning unused variable: `n` [cargo check unused_variables]",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("program", OTHERS)
@in_loop
async def test_linters_of_other_languages(lay: Lay, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setenv("PATH", str(NODE), prepend=":")
    monkeypatch.setenv("PATH", str(Path("~/.cargo/bin").expanduser()), prepend=":")
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    files, (path, added), told = OTHERS[program]
    host, _ = lay(files)
    toolbox = Bench(host.workspace).toolbox
    assert (await lints(toolbox)).startswith("No new problems from")
    await host.workspace.write(path, added + files.get(path, b""))
    output = (await lints(toolbox)).split("\n")
    assert output[0] == "New problems: 1"
    assert told in output[1]
    assert output[2] == "Older problems, which were there when you began: 1 in 1 files"
