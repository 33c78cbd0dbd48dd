"""Shells that remember and commands that go on, in a real box."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import SAMPLE

from etude.harness.workspaces.terminal import FOLDER, Terminals, plain
from etude.sandbox import BoxSpec, Sandboxes


async def in_a_box(sandboxes: Sandboxes) -> Terminals:
    return Terminals(await sandboxes.create(BoxSpec(await sandboxes.add_image(dict(SAMPLE)))), {})


@in_loop
async def test_folders_variables_and_codes_last(sandboxes: Sandboxes) -> None:
    terminals = await in_a_box(sandboxes)

    async def said(command: str) -> tuple[str, int | None]:
        heard = await terminals.run(command, seconds=20)
        return heard.text, heard.code

    assert await said("cd pack && x=3; pwd") == ("/work/pack", 0)
    assert await said("echo $x; pwd; ls") == ("3\n/work/pack\nother.py", 0)
    assert await said("false") == ("", 1)
    assert await said("echo to stderr >&2; (exit 7)") == ("to stderr", 7)
    assert await said("double() { echo $(($1 * 2)); }") == ("", 0)
    assert await said("double 21") == ("42", 0)
    assert await said("for i in 1 2; do\n  echo $i\ndone\ncat <<'END'\nit's \"quoted\"\nEND") == (
        '1\n2\nit\'s "quoted"',
        0,
    )
    text, code = await said("if then")
    assert "syntax error" in text
    assert code
    assert await said("echo $x") == ("3", 0), "a mistake does not cost the shell"


@in_loop
async def test_a_command_that_ends_the_shell_costs_what_it_knew_but_not_the_folder(sandboxes: Sandboxes) -> None:
    terminals = await in_a_box(sandboxes)
    await terminals.run("cd pack; x=3", seconds=20)
    ended = await terminals.run("echo bye; exit 4", seconds=20)
    assert (ended.text, ended.code) == ("bye", 4)
    again = await terminals.run("echo $x; pwd", seconds=20)
    assert (again.text, again.code) == ("/work/pack", 0)


@in_loop
async def test_floods_paint_and_bytes_that_are_no_text(sandboxes: Sandboxes) -> None:
    terminals = await in_a_box(sandboxes)
    flood = await terminals.run("seq 700000", seconds=60)
    assert flood.code == 0
    assert flood.text.endswith("\n699999\n700000")
    assert flood.skipped > 0
    painted = await terminals.run("printf '\\033[31mred\\033[0m 10%%\\r 99%%\\rdone\\n\\377\\000x'", seconds=20)
    assert painted.text == "done\n\N{REPLACEMENT CHARACTER}x"
    assert (await terminals.run("git --no-pager log 2>&1 | cat; echo $PAGER $TERM", seconds=20)).text.endswith(
        "cat dumb"
    )


@in_loop
async def test_what_a_command_prints_is_not_taken_for_its_end(sandboxes: Sandboxes) -> None:
    terminals = await in_a_box(sandboxes)
    fake = await terminals.run("printf '\\n\\001%s 0 /\\002' 0123456789abcdef; echo; echo more; false", seconds=20)
    assert fake.text.endswith("more")
    assert fake.code == 1
    listed = await terminals.run(f"ls {FOLDER}/* | wc -l", seconds=20)
    assert listed.text == "2", "one file per command"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"a\r\nb\r\n", "a\nb"),
        (b"\x1b]0;title\x07x\x1b[2Ky\x1b(B", "xy"),
        (b"abc\b\bX", "aX"),
        (b"10%\r20%\r", "20%"),
        (b"\ttab\x00\x07", "\ttab"),
    ],
)
def test_plain(said: bytes, shown: str) -> None:
    assert plain(said) == shown


@given(st.binary(max_size=200))
def test_plain_text_has_no_controls(said: bytes) -> None:
    assert all(character in "\n\t" or character >= " " for character in plain(said))
