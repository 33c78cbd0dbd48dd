"""The Dockerfile parser: what is written comes back as it was meant, and no text does worse than a clear error."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from etude.sandbox import ImageError
from etude.sandbox.images.build.dockerfile import parse_dockerfile
from etude.sandbox.images.build.instructions import (
    Action,
    Arg,
    Cmd,
    Command,
    Copy,
    Entrypoint,
    Env,
    Remark,
    Run,
    Shell,
    User,
    Workdir,
)
from etude.sandbox.images.build.lines import Heredoc


def actions(text: str) -> list[Action]:
    return [instruction.action for instruction in parse_dockerfile(text).stages[-1].instructions]


def action(line: str) -> Action:
    (found,) = actions(f"FROM host\n{line}")
    return found


def refusal(text: str) -> str:
    with pytest.raises(ImageError) as caught:
        parse_dockerfile(text, "D")
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("RUN [ -f x ] && make", Run(Command(("[ -f x ] && make",), shell=True))),
        ("RUN ['single', 'quotes']", Run(Command(("['single', 'quotes']",), shell=True))),
        ("RUN --mount=type=cache,target=/c make", Run(Command(("make",), shell=True), cache_mounts=True)),
        ("CMD []", Cmd(Command((), shell=False))),
        ("ENTRYPOINT exec top -b", Entrypoint(Command(("exec top -b",), shell=True))),
        ("ENV a=1 b='x y' c=\"$d e\" f=g\\ h", Env((("a", "1"), ("b", "'x y'"), ("c", '"$d e"'), ("f", "g\\ h")))),
        ("ENV greeting hello  big world", Env((("greeting", "hello  big world"),))),
        ("ARG one two=2 three=", Arg((("one", None), ("two", "2"), ("three", "")))),
        (
            "COPY --from=build --chown=1:2 --chmod=755 /a /b",
            Copy(("/a",), "/b", stage="build", owner="1:2", mode="755"),
        ),
        ("COPY --link a b", Copy(("a",), "b")),
        ("ADD x.tar.gz /", Copy(("x.tar.gz",), "/", unpack=True)),
        ("USER me:us", User("me:us")),
        ('SHELL ["/bin/bash", "-c"]', Shell(("/bin/bash", "-c"))),
        ('LABEL a=b "c d"="e f"', None),
        ("LABEL version=1", Remark()),
        ("EXPOSE 80/tcp 443", Remark()),
        ("MAINTAINER someone <s@example.org>", Remark()),
        ("STOPSIGNAL SIGTERM", Remark()),
    ],
)
def test_one_instruction(line: str, expected: Action | None) -> None:
    if expected is None:
        assert "not a name" in refusal(f"FROM host\n{line}")
    else:
        assert action(line) == expected


def test_continuations_comments_and_empty_lines() -> None:
    text = (
        "\ufeff# a comment\n\nFROM host \\\n  AS  Base\n\n"
        "RUN one \\\n   # no part of it\n\n  && two \\ \n && three\n  \nUSER x"
    )
    parsed = parse_dockerfile(text)
    assert parsed.stages[0].name == "base"
    assert [(i.line, i.action) for i in parsed.stages[0].instructions] == [
        (6, Run(Command(("one   && two  && three",), shell=True))),
        (12, User("x")),
    ]
    assert actions("FROM host\r\nRUN a \\\r\n b\r\n") == [Run(Command(("a  b",), shell=True))]


def test_the_escape_directive() -> None:
    text = "# syntax=docker/dockerfile:1.7\n# Escape = `\nFROM host\nCOPY a `\n c:\\\nRUN echo `\n  hi\\"
    assert actions(text) == [Copy(("a",), "c:\\"), Run(Command(("echo   hi\\",), shell=True))]
    assert parse_dockerfile(text).escape == "`"
    # After anything else, it is a comment.
    assert actions("# x\n# escape=`\nFROM host\nRUN a \\\n b") == [Run(Command(("a  b",), shell=True))]
    # A doubled escape character is no continuation.
    assert actions("FROM host\nRUN echo a \\\\\nUSER x") == [Run(Command(("echo a \\\\",), shell=True)), User("x")]


def test_heredocs() -> None:
    text = (
        "FROM host\nRUN <<EOF\nset -e\n# kept $x\nEOF\n"
        "RUN python3 - <<'A B' <<-\nB\nA B\nRUN cat <<-EOT >a && cat <<two >b\n\t one\n\tEOT\nzwei\ntwo\n"
        'COPY <<a.txt <<"b.txt" /d/\nA\na.txt\nB\nb.txt\nUSER x'
    )
    run, odd, two, copy, user = actions(text)
    assert run == Run(Command(("<<EOF",), shell=True), (Heredoc("EOF", "set -e\n# kept $x\n"),))
    assert odd == Run(Command(("python3 - <<'A B' <<-",), shell=True), (Heredoc("A B", "B\n", literal=True),))
    assert isinstance(two, Run)
    assert two.heredocs == (Heredoc("EOT", "\t one\n", indented=True), Heredoc("two", "zwei\n"))
    assert two.heredocs[0].text == " one\n"
    assert copy == Copy((), "/d/", (Heredoc("a.txt", "A\n"), Heredoc("b.txt", "B\n", literal=True)))
    assert user == User("x")


def test_stages() -> None:
    parsed = parse_dockerfile(
        "ARG tag=1\nFROM --platform=linux/amd64 a:$tag AS One\nRUN x\nFROM one\nFROM scratch AS last\n"
    )
    assert [(s.index, s.name, s.base, s.platform, len(s.instructions)) for s in parsed.stages] == [
        (0, "one", "a:$tag", "linux/amd64", 1),
        (1, "", "one", "", 0),
        (2, "last", "scratch", "", 0),
    ]
    assert parsed.arguments[0].action == Arg((("tag", "1"),))
    assert parsed.stage_before("ONE", 2) is parsed.stages[0]
    assert parsed.stage_before("1", 2) is parsed.stages[1]
    assert parsed.stage_before("last", 2) is None
    assert parsed.stage_before("", 3) is None


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 0, "no FROM"),
        ("# only\n\n", 0, "no FROM"),
        ("RUN x", 1, "only ARG may come before the first FROM"),
        ("FROM a\nFRUM b", 2, "did you mean FROM?"),
        ("FROM a\nXYZZY b", 2, "not an instruction"),
        ("FROM a b", 1, "FROM image AS name"),
        ("FROM a AS 1x", 1, "stage name '1x'"),
        ("FROM a AS scratch", 1, "stage name 'scratch'"),
        ("FROM a AS x\nFROM b AS X", 2, "a second stage named 'x'"),
        ("FROM --os=x a", 1, "--os is not supported; there are --platform"),
        ("FROM a\nHEALTHCHECK CMD true", 2, "HEALTHCHECK is not supported"),
        ("FROM a\n\nVOLUME /data", 3, "VOLUME is not supported"),
        ("FROM a\nONBUILD RUN x", 2, "ONBUILD is not supported"),
        ("FROM a\nRUN", 2, "expected at least one word after the instruction"),
        ("FROM a\nRUN []", 2, "expected a command"),
        ("FROM a\nRUN --mount=type=bind,target=/x make", 2, "--mount=type=bind,target=/x is not supported"),
        ("FROM a\nRUN --mount make", 2, "--mount needs a value"),
        ("FROM a\nRUN --network=host make", 2, "--network is not supported"),
        ("FROM a\nCOPY --chown=a --chown=b a b", 2, "--chown is given twice"),
        ("FROM a\nCOPY a", 2, "at least one source and a target"),
        ('FROM a\nCOPY ["a", 1]', 2, "something else than strings"),
        ("FROM a\nCOPY a b c", 2, "several sources need a folder as target: c/"),
        ("FROM a\nADD --from=x a b", 2, "--from is not supported"),
        ("FROM a\nADD https://example.org/x /", 2, "let a RUN fetch it"),
        ("FROM a\nADD git@example.org:x.git /", 2, "nothing is fetched by ADD"),
        ("FROM a\nENV x", 2, "expected NAME=value"),
        ("FROM a\nENV a=1 b", 2, "'b': expected NAME=value"),
        ('FROM a\nENV a="1', 2, "not closed"),
        ("FROM a\nENV =1", 2, "'' is not a name"),
        ("FROM a\nSHELL bash -c", 2, "expected a list in JSON"),
        ("FROM a\nRUN <<EOF\nx\n", 2, "heredoc EOF"),
        ("FROM a\nCOPY --from=x <<EOF /\nEOF", 2, "comes from the Dockerfile"),
        ("# syntax=example/frontend:2\nFROM a", 1, "only docker/dockerfile:1"),
        ("# escape=x\nFROM a", 1, "expected \\ or `"),
        ("# escape=`\n# escape=`\nFROM a", 2, "a second '# escape=' directive"),
        ("FROM a\nRUN x\0", 2, "a zero byte"),
    ],
)
def test_refusals_name_the_line(text: str, line: int, words: str) -> None:
    said = refusal(text)
    assert words in said
    assert said.startswith(f"D:{line}: " if line else "D: ")
    assert "\n" not in said


# -- round trips

_WORD = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="\\\"'$#<[`"), min_size=1
)
_NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
_FREE = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Cs"]), min_size=1).map(str.strip)
_SENTENCE = st.lists(_WORD.filter(lambda word: not word.startswith("--")), min_size=1, max_size=5).map(" ".join)


@st.composite
def written(draw: st.DrawFn) -> tuple[str, Action]:
    """An instruction, and one of the ways to write it."""
    kind = draw(st.sampled_from(["run", "exec", "env", "copy", "json", "workdir", "arg", "cmd"]))
    if kind == "run":
        sentence = draw(_SENTENCE)
        breaks = draw(st.sampled_from([" ", " \\\n ", " \\  \n# aside\n\n"]))
        broken = sentence.replace(" ", breaks)
        expected = sentence if breaks == " " else sentence.replace(" ", "  " if "#" not in breaks else " ")
        return f"RUN {broken}", Run(Command((expected,), shell=True))
    if kind in ("exec", "cmd"):
        words = draw(st.lists(_FREE, min_size=1, max_size=4))
        text = json.dumps(words, ensure_ascii=draw(st.booleans()))
        command = Command(tuple(words), shell=False)
        return (f"RUN {text}", Run(command)) if kind == "exec" else (f"Cmd {text}", Cmd(command))
    if kind == "env":
        pairs = draw(st.lists(st.tuples(_NAME, _WORD), min_size=1, max_size=3))
        return "ENV " + "  ".join(f"{name}={value}" for name, value in pairs), Env(tuple(pairs))
    if kind == "copy":
        sources = draw(
            st.lists(_WORD.filter(lambda w: not w.startswith("--") and ":" not in w), min_size=1, max_size=3)
        )
        return f"COPY {' '.join(sources)} /t/", Copy(tuple(sources), "/t/")
    if kind == "json":
        sources = draw(st.lists(_FREE.filter(lambda w: w and ":" not in w and "@" not in w), min_size=1, max_size=3))
        return f"ADD {json.dumps([*sources, '/t/'])}", Copy(tuple(sources), "/t/", unpack=True)
    if kind == "workdir":
        path = draw(_SENTENCE)
        return f"WORKDIR {path}", Workdir(path)
    name = draw(_NAME)
    return f"ARG {name}", Arg(((name, None),))


@given(st.lists(written(), max_size=6))
def test_what_is_written_comes_back(lines: list[tuple[str, Action]]) -> None:
    text = "FROM host\n" + "\n".join(line for line, _ in lines)
    assert actions(text) == [expected for _, expected in lines]


@given(_NAME, st.text(st.characters(codec="utf-8", exclude_characters="\r\0")), st.booleans())
def test_heredocs_keep_every_byte(name: str, body: str, literal: bool) -> None:
    lines = [line for line in body.split("\n") if line != name]
    quoted = f"'{name}'" if literal else name
    text = "\n".join(["FROM host", f"RUN cat <<{quoted}", *lines, name, "USER x"])
    run, user = actions(text)
    assert isinstance(run, Run)
    assert run.heredocs == (Heredoc(name, "".join(f"{line}\n" for line in lines), literal=literal),)
    assert user == User("x")


@given(st.text(st.sampled_from("FROMRUNCOPYENVARG \n\t\\\"'${}[]:-#<=`aé,.\r")) | st.text())
@example("FROM a\nENV " + "a=${b:-" * 200)
@example("FROM a\nRUN " + "[" * 100_000)
@example("FROM a\nENV a=\x1f")
@settings(max_examples=300)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for dockerfile in (text, f"FROM host\n{text}"):
        with contextlib.suppress(ImageError):
            parse_dockerfile(dockerfile, "D")
