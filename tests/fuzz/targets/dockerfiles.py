"""Dockerfiles and ignore files of agents: read on the host, before any box is made."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of

from etude.sandbox.contract import ImageError
from etude.sandbox.images.build.dockerfile import parse_dockerfile
from etude.sandbox.images.build.instructions import Arg, Cmd, Copy, Entrypoint, Env, Run, Shell, User, Workdir
from etude.sandbox.images.build.patterns import Glob, Ignored, is_pattern
from etude.sandbox.images.build.plan import make_plan, unused
from etude.sandbox.images.build.settings import StageState, apply_setting, declare
from etude.sandbox.images.image import HOST, Image

_KEPT = Path(__file__).resolve().parents[2] / "sandbox" / "dockerfiles"


def _run(data: bytes) -> str:
    """Read a Dockerfile as a build does, with all that needs no box."""
    try:
        dockerfile = parse_dockerfile(data.decode("utf-8", "replace"))
        given = {"A": "given"}
        plan = make_plan(dockerfile, "", given)
        unused(dockerfile, given)
        for stage in plan.needed:
            state = StageState(Image(HOST, ()), dockerfile.escape)
            for instruction in stage.instructions:
                state = _applied(state, instruction.action, plan.defaults)
    except (ImageError, ValueError) as error:
        return kind_of(ValueError(str(error).rpartition(": ")[2]))
    size = sum(len(name) + len(value) for name, value in state.config.env)
    assert size <= len(data) + (1 << 18), "the variables have no bound"
    return f"{min(len(plan.needed), 3)} stages"


def _applied(state: StageState, action: object, defaults: dict[str, str]) -> StageState:
    if isinstance(action, Arg):
        return declare(state, action, {}, defaults)
    if isinstance(action, Env | User | Shell | Entrypoint | Cmd):
        return apply_setting(state, action)
    if isinstance(action, Workdir):
        return state.with_config(workdir=state.folder(state.expand(action.path)))
    if isinstance(action, Copy):
        for text in (*action.sources, action.target, action.owner, action.mode):
            found = state.expand(text)
            state.target(found)
            if is_pattern(found):
                Glob(found).matches("some/path")
    if isinstance(action, Copy | Run):
        for heredoc in action.heredocs:
            state.expand_document(heredoc.text)
    return state


_WORDS = st.sampled_from(
    [
        *(
            "a",
            "b=c",
            "$A",
            "${A}",
            "${A:-$B}",
            "${A##*.}",
            "${A%%x*}",
            "${A:+${B}}",
            "A=$A$A",
            'B="x y"',
            "'q'",
            "\\",
            '"',
            "'",
        ),
        *(
            "--from=a",
            "--chown=1:2",
            "--mount=type=cache,target=/x",
            "<<EOF",
            "<<-'E O'",
            "/a/*",
            "[a-z]",
            '["a", "b"]',
            "[",
            "é",
        ),
        *(
            "host",
            "scratch",
            "AS",
            "a:b",
            "${A",
            "$",
            "${A:?no}",
            "#",
            "`",
            "\t",
            "a" * 50,
            "--link",
            "--platform=linux/amd64",
        ),
    ]
)
_NAMES = st.sampled_from(
    [
        *(
            "FROM",
            "RUN",
            "COPY",
            "ADD",
            "ENV",
            "ARG",
            "WORKDIR",
            "USER",
            "SHELL",
            "ENTRYPOINT",
            "CMD",
            "LABEL",
            "EXPOSE",
        ),
        *(
            "VOLUME",
            "ONBUILD",
            "HEALTHCHECK",
            "from",
            "XYZ",
            "# syntax=docker/dockerfile:1",
            "# escape=`",
            "#",
            "",
            "EOF",
        ),
    ]
)
_LINES = st.builds(
    lambda name, words, end: f"{name} {' '.join(words)}{end}",
    _NAMES,
    st.lists(_WORDS, max_size=4),
    st.sampled_from(["\n", "\n", "\n", " \\\n", "\r\n", "\nEOF\n", ""]),
)
_DOCKERFILES = st.builds(
    lambda head, lines: (head + "".join(lines)).encode(),
    st.sampled_from(["FROM host\n", "FROM host AS a\n", "ARG A=1\nFROM $A\n", ""]),
    st.lists(_LINES, max_size=10),
)


def _examples() -> list[bytes]:
    return [path.read_bytes() for path in sorted(_KEPT.glob("*.Dockerfile"))]


_PATHS = ("a", "a/b.py", "build/x/y.o", "a" * 200, "a/" * 100 + "b", "ab" * 100, ".git/x", "é/\n")


def _run_ignored(data: bytes) -> str:
    try:
        ignored = Ignored.from_text(data.decode("utf-8", "replace"))
    except ValueError as error:
        return kind_of(error)
    return "".join("x" if ignored.excludes(path) else "." for path in _PATHS)


_IGNORED = st.lists(
    st.lists(st.sampled_from([*"ab*?/!.[]-^\\# ", "**", "**/", "*a", "[a-z]", "../"]), max_size=12).map("".join),
    max_size=4,
).map(lambda lines: "\n".join(lines).encode())

TARGETS = (
    Target("dockerfile", _run, _DOCKERFILES, ("etude.sandbox.images.build",), _examples),
    Target(
        "ignored",
        _run_ignored,
        _IGNORED,
        ("etude.sandbox.images.build.patterns",),
        lambda: [b"# no\n*.log\n!build/keep\n**/tmp\na/**/b\n[a-c]?\n"],
        largest=1 << 14,
    ),
)
