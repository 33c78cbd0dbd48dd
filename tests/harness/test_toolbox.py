from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import parts
from tests.harness.parts import FULL, SAMPLE

from etude.harness import (
    Output,
    OverlayWorkspace,
    SchemaError,
    Toolbox,
    ToolCall,
    ToolLimits,
    ToolResult,
    ToolSchema,
    builtin_schema,
)
from etude.harness.tools.files import replacement
from etude.sandbox import ExecResult, HostOverloaded
from etude.sandbox.cpu_share import Share
from etude.text import parse_call


class Bench(parts.Bench):
    """Called in the compact grammar."""

    def __init__(self, files=SAMPLE, **limits: Any) -> None:
        super().__init__(OverlayWorkspace(files), more=["shell"], **limits)
        self.schemas = {name: schema.call_schema() for name, schema in self.toolbox.schemas.items()}

    def call(self, raw: str, max_tokens: int = 10_000) -> ToolResult:
        found = parse_call(raw, self.schemas)
        parsed = (raw.split(" ")[0], None, raw, found) if isinstance(found, str) else (*found, raw)
        return asyncio.run(self.toolbox.run(ToolCall("1", *parsed), max_tokens=max_tokens, count=len))

    def say(self, raw: str, **options: int) -> str:
        return self.call(raw, **options).output

    def text(self, path: str = "calc.py") -> str:
        return asyncio.run(self.workspace.read(path)).decode()


def test_list():
    assert Bench().say("list") == "calc.py\ncheck.py\npack/other.py"
    assert Bench().say("list pack/") == "pack/other.py"
    assert Bench().say("list nowhere") == "There is no file 'nowhere'."
    assert Bench({}).say("list") == "(no files)"


def test_read_numbers_lines_and_takes_a_range():
    assert Bench().say("read calc.py 2 3") == "2 def larger(a, b):\n3     return min(a, b)"
    assert Bench().say("read calc.py 3") == "3     return min(a, b)"
    assert Bench().say("read calc.py 2 99").startswith("2 def")
    assert Bench().say("read /work/calc.py 1 1") == "1 # the larger of two"
    assert Bench().say("read calc.py 7") == "calc.py has no lines from 7 to 3; it has 3 lines."
    assert Bench({"a": b""}).say("read a") == "(no files)"


def test_read_explains_what_it_cannot_read():
    bench = Bench({"calc.py": b"x\n", "blob": b"\0\1", "pack/a": b"a", "huge": b"x" * 1_100_000})
    assert bench.say("read cals.py") == "There is no file 'cals.py'. Did you mean calc.py?"
    assert bench.say("read pack") == "'pack' is a folder, not a file."
    assert bench.say("read blob") == "'blob' is not a text file."
    assert "at most 1000000 can be read" in bench.say("read huge")
    assert bench.say("read ../etc/passwd") == "'../etc/passwd' is not a path inside the workspace."
    assert bench.say("read /etc/passwd") == "'/etc/passwd' is not a path inside the workspace."


def test_edit_replaces_one_line_and_keeps_its_indentation():
    bench = Bench()
    assert bench.say("edit calc.py 3 return max(a, b)") == "The edited lines now read:\n3     return max(a, b)"
    assert bench.text() == "# the larger of two\ndef larger(a, b):\n    return max(a, b)\n"
    bench.call("edit calc.py 3   return b")
    assert bench.text().endswith("\n  return b\n")
    assert bench.toolbox.edited == {"calc.py": 2}


def test_an_edit_may_name_several_lines_and_put_several_in_the_place_of_one():
    bench = Bench()
    bench.call("edit calc.py 3 if a > b:\n3     return a\n3 return b")
    assert bench.text().endswith("b):\n    if a > b:\n        return a\n    return b\n")
    said = bench.say("edit calc.py 5 return max(a, b)\n1 # of two\n2 def larger(a, b):\n")
    assert said == "The edited lines now read:\n1 # of two\n2 def larger(a, b):\n5     return max(a, b)"
    assert bench.text() == "# of two\ndef larger(a, b):\n    if a > b:\n        return a\n    return max(a, b)\n"
    bench.call("edit calc.py 4\n1 a\n1 b")
    assert bench.text() == "a\nb\ndef larger(a, b):\n    if a > b:\n\n    return max(a, b)\n"
    assert bench.toolbox.edited == {"calc.py": 3}


@pytest.mark.parametrize("lines", ["return 1", "3 return 1\nreturn 2", "three 1", "-3 x", "3.0 x", "", "3x"])
def test_an_edit_whose_lines_have_no_number_changes_nothing(lines):
    bench = Bench()
    bad = next(line for line in lines.split("\n") if not line.startswith("3 "))
    result = bench.call(f"edit calc.py {lines}")
    assert not result.valid
    assert result.output == (
        f"The call could not be read: edit: a line must begin with its number, not {bad or 'be empty'}"
    )
    assert bench.text() == "# the larger of two\ndef larger(a, b):\n    return min(a, b)\n"


@given(st.lists(st.text("ab \t#", max_size=6).map(lambda text: f"x{text}"), min_size=1, max_size=6), st.data())
def test_an_edit_changes_the_lines_it_names_and_no_other(old, data):
    wanted = data.draw(st.dictionaries(st.integers(1, len(old)), st.text("xyz", min_size=1, max_size=4), min_size=1))
    bench = Bench({"a": "".join(f"{line}\n" for line in old).encode()})
    order = data.draw(st.permutations(list(wanted)))
    bench.call("edit a " + "\n".join(f"{number} {wanted[number]}" for number in order))
    assert bench.text("a") == "".join(f"{wanted.get(number, line)}\n" for number, line in enumerate(old, 1))


@pytest.mark.parametrize(
    ("old", "text", "new"),
    [
        ("\tx = 1", "y = 2", ["\ty = 2"]),
        ("    x", "", [""]),
        ("    x\r", "y", ["    y\r"]),
        ("x", "  y\n  z", ["  y", "  z"]),
        ("  x", "y\n", ["  y"]),
    ],
)
def test_replacement(old, text, new):
    assert replacement(old, text) == new


def test_edit_keeps_a_missing_newline_at_the_end_missing():
    bench = Bench({"calc.py": b"a\nb"})
    bench.call("edit calc.py 2 c")
    assert bench.text() == "a\nc"


def test_edit_out_of_range_and_over_its_limit():
    bench = Bench(edits=1)
    assert bench.say("edit calc.py 9 x") == "calc.py has no line 9; it has 3 lines."
    assert bench.say("edit calc.py 1 x\n0 y") == "calc.py has no line 0; it has 3 lines."
    assert bench.call("edit calc.py 1 x").ok
    assert bench.say("edit calc.py 1 y") == "No further edit is allowed; finish."
    assert bench.text().startswith("x\n")


def test_no_expression_hangs_the_harness():
    bench = Bench({"a.txt": b"a" * 5000 + b"!\n"})
    assert bench.say("grep /(a+)+$/") == "No line matches."
    assert bench.say("grep /(/").startswith("The pattern is not a regular expression")


def test_output_is_cut_visibly():
    bench = Bench({"long.py": b"".join(b"line %d\n" % n for n in range(500))})
    said = bench.say("read long.py", max_tokens=60)
    assert len(said) <= 60
    assert said.startswith("1 line 0\n2 line 1")
    assert said.endswith("lines cut]")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"path": 3},
        {"path": 1, "lines": "1 x"},
        {"path": "a", "more": 1},
        {"path": "calc.py", "lines": "1 \ud800"},
        {"path": "calc.py", "lines": "1 x\ny"},
    ],
)
def test_arguments_of_any_policy_are_checked(arguments):
    bench = Bench()
    call = ToolCall("1", "edit", arguments, "edit")
    result = asyncio.run(bench.toolbox.run(call, max_tokens=100, count=len))
    assert (result.ok, result.valid) == (False, False)
    assert asyncio.run(bench.workspace.diff()) == ""


class _Slow(OverlayWorkspace):
    async def exec(self, command: str, *, timeout: float) -> ExecResult:
        """`make` wants time and has none; everything else sleeps."""
        share = Share(timeout, timeout, timeout / 10, timeout / 10 * (command == "make"))
        return ExecResult(137, b"begun\n", b"", timeout, timed_out=True, limit="time", share=share)


def test_a_command_that_reaches_its_time_limit_failed_unless_the_host_is_to_blame():
    bench = Bench(command_seconds=3.0)
    bench.toolbox.workspace = _Slow(SAMPLE)
    result = bench.call("shell sleep")
    assert (result.ok, result.output.split("\n")[0]) == (False, "begun")
    with pytest.raises(HostOverloaded, match="its limit of 3 s on a host that gave it no CPU time"):
        bench.call("shell make")


def test_a_schema_without_an_implementation_is_refused_at_once():
    with pytest.raises(SchemaError, match="fly"):
        Toolbox([ToolSchema("fly", "")], OverlayWorkspace({}), ToolLimits(), FULL)


def test_a_tool_can_be_added():
    async def shout(toolbox, arguments):
        return Output(["HEY"])

    toolbox = Toolbox([ToolSchema("shout", "")], OverlayWorkspace({}), ToolLimits(), FULL, {"shout": shout})
    result = asyncio.run(toolbox.run(ToolCall("1", "shout", {}, "shout"), max_tokens=9, count=len))
    assert result.output == "HEY"


words = st.sampled_from(["list", "read", "edit", "grep", "finish", "calc.py", "..", "/", "3", "-1", "\n", "pack", "\0"])
raw_calls = st.one_of(
    st.lists(words, max_size=6).map(" ".join),
    st.text(max_size=40),
    st.tuples(words, st.text(max_size=20)).map(" ".join),
)


@settings(max_examples=150, deadline=None)
@given(raw=raw_calls, most=st.integers(0, 200))
def test_whatever_the_model_writes_gets_a_bounded_answer(raw, most):
    bench = Bench()
    result = bench.call(raw, max_tokens=most)
    assert len(result.output) <= most
    changed = bench.workspace.changed()
    assert set(changed) <= set(SAMPLE)
    assert not changed or raw.lstrip().startswith("edit")


def test_schemas_as_openai_functions():
    function = builtin_schema("edit").openai()["function"]
    assert function["parameters"]["required"] == ["path", "lines"]
    assert function["parameters"]["properties"]["lines"]["type"] == "string"
    assert builtin_schema("read").openai()["function"]["parameters"]["properties"]["first"]["type"] == "integer"
