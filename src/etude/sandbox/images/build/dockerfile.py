"""Parses the text of a Dockerfile into instructions.

An instruction that a box cannot support is refused before anything is built, with its name and line.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from etude.sandbox.contract import ImageError
from etude.sandbox.images.build.instructions import (
    Action,
    Arg,
    Cmd,
    Command,
    Copy,
    Dockerfile,
    Entrypoint,
    Env,
    Instruction,
    Remark,
    Run,
    Shell,
    Stage,
    User,
    Workdir,
)
from etude.sandbox.images.build.lines import Line, logical_lines
from etude.sandbox.images.build.variables import split_words

_FLAG = re.compile(r"""--([A-Za-z][A-Za-z-]*)(?:=((?:"[^"]*"|'[^']*'|[^\s"'])*))?(?:\s+|$)""")
_STAGE_NAME = re.compile(r"[a-z][a-z0-9-_.]*")
_RESERVED = ("scratch", "host")
_MOST_LINES, _MOST_VARIABLES = 1000, 250
"""Maximum numbers of instructions of a Dockerfile, and of variables that one instruction sets. Both are far beyond what
people write."""
_REFUSED = {
    "HEALTHCHECK": "nothing watches a box's health; leave it out",
    "ONBUILD": "images that change later builds are not made here; write its instruction where it is needed",
    "VOLUME": "a box keeps what is written anywhere, and no folder outlives it; leave it out",
}


def parse_dockerfile(text: str, file: str = "Dockerfile") -> Dockerfile:
    """Parse a Dockerfile. Raises ImageError with the file and line of a mistake."""
    escape, lines = logical_lines(text, file)
    if len(lines) > _MOST_LINES:
        raise ImageError(f"{file}:{lines[_MOST_LINES].number}: more than {_MOST_LINES} instructions")
    parser = _Parser(escape)
    arguments: list[Instruction] = []
    stages: list[Stage] = []
    for line in lines:
        shown = _shown(line)
        try:
            if line.name == "FROM":
                stages.append(_stage(line, shown, stages))
            else:
                instruction = Instruction(line.number, shown, parser.action(line))
                if not stages and not isinstance(instruction.action, Arg):
                    raise ValueError("only ARG may come before the first FROM")
                if stages:
                    stages[-1] = replace(stages[-1], instructions=(*stages[-1].instructions, instruction))
                else:
                    arguments.append(instruction)
        except ValueError as error:
            raise ImageError(f"{file}:{line.number}: {shown}: {error}") from error
    if not stages:
        raise ImageError(f"{file}: no FROM; a Dockerfile starts from an image, from 'scratch' or from 'host'")
    return Dockerfile(file, escape, tuple(arguments), tuple(stages))


def _shown(line: Line) -> str:
    """Return an instruction on one line, shortened, for messages."""
    text = " ".join(f"{line.name} {line.rest}".split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def _stage(line: Line, shown: str, before: list[Stage]) -> Stage:
    """Parse a FROM. `shown` is the instruction's text for messages, `before` are the earlier stages."""
    flags, rest = _flags(line.rest, "platform")
    words = rest.split()
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise ValueError("expected FROM image, or FROM image AS name")
    name = words[2].lower() if len(words) == 3 else ""
    if name and (not _STAGE_NAME.fullmatch(name) or name in _RESERVED):
        raise ValueError(
            f"stage name {name!r}: expected a letter, then letters, digits, - _ or ., and not a base's name"
        )
    if name and any(stage.name == name for stage in before):
        raise ValueError(f"a second stage named {name!r}")
    return Stage(len(before), name, words[0], flags.get("platform", ""), line.number, shown, ())


class _Parser:
    """Parses instructions other than FROM, given the file's escape character."""

    def __init__(self, escape: str) -> None:
        self.escape = escape
        self.readers: dict[str, Callable[[Line], Action]] = {
            "ADD": lambda line: self._copy(line, unpack=True),
            "ARG": self._arg,
            "CMD": lambda line: Cmd(_command(line.rest)),
            "COPY": lambda line: self._copy(line, unpack=False),
            "ENTRYPOINT": lambda line: Entrypoint(_command(line.rest)),
            "ENV": lambda line: Env(self._pairs(line.rest)),
            "EXPOSE": _remark,
            "LABEL": self._label,
            "MAINTAINER": _remark,
            "RUN": _run,
            "SHELL": _shell,
            "STOPSIGNAL": _remark,
            "USER": lambda line: User(_one(line.rest)),
            "WORKDIR": lambda line: Workdir(_one(line.rest)),
        }

    def action(self, line: Line) -> Action:
        if line.name in _REFUSED:
            raise ValueError(f"{line.name} is not supported: {_REFUSED[line.name]}")
        reader = self.readers.get(line.name)
        if reader is None:
            near = difflib.get_close_matches(line.name, [*self.readers, "FROM"], 1)
            raise ValueError("not an instruction" + (f"; did you mean {near[0]}?" if near else ""))
        return reader(line)

    def _arg(self, line: Line) -> Arg:
        names = []
        for word in split_words(_one(line.rest), self.escape):
            name, equals, default = word.partition("=")
            names.append((_name(name), default if equals else None))
        _require_few(names)
        return Arg(tuple(names))

    def _pairs(self, rest: str) -> tuple[tuple[str, str], ...]:
        """Parse NAME=value ..., or the old form NAME value, where the value is the rest of the line."""
        words = split_words(_one(rest), self.escape)
        if "=" not in words[0]:
            name, _, value = re.sub(r"\s+", " ", rest.strip(), count=1).partition(" ")
            if not value:
                raise ValueError("expected NAME=value")
            return ((_name(name), value),)
        pairs = []
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise ValueError(f"{word!r}: expected NAME=value; a value with spaces needs quotes")
            pairs.append((_name(name), value))
        _require_few(pairs)
        return tuple(pairs)

    def _label(self, line: Line) -> Remark:
        self._pairs(line.rest)
        return Remark()

    def _copy(self, line: Line, *, unpack: bool) -> Copy:
        known = ("chown", "chmod", "link") if unpack else ("chown", "chmod", "link", "from")
        flags, rest = _flags(line.rest, *known)
        listed = _json_list(rest)
        words = rest.split() if listed is None else listed
        if len(words) < 2 or not all(words):
            raise ValueError("expected at least one source and a target")
        *sources, target = words
        if line.heredocs:
            sources = [word for word in sources if not re.match(r"\d*<<", word)]
            if flags.get("from"):
                raise ValueError("a heredoc comes from the Dockerfile, not --from elsewhere")
        if len(sources) + len(line.heredocs) > 1 and not target.endswith("/"):
            raise ValueError(f"several sources need a folder as target: {target}/")
        if url := next((word for word in sources if re.match(r"https?://|git@|ssh://|git://", word)), ""):
            how = "let a RUN fetch it, under an egress policy" if unpack else "COPY takes files only"
            raise ValueError(f"{url}: nothing is fetched by {line.name}; {how}")
        owner, mode = flags.get("chown", ""), flags.get("chmod", "")
        return Copy(tuple(sources), target, line.heredocs, flags.get("from", ""), owner, mode, unpack)


def _flags(rest: str, *known: str) -> tuple[dict[str, str], str]:
    """Split off the --flags that begin an instruction. Return (flags, rest). Raises ValueError if one is not
    `known`."""
    found: dict[str, str] = {}
    while match := _FLAG.match(rest):
        name = match[1]
        if name not in known:
            raise ValueError(f"--{name} is not supported" + (f"; there are --{', --'.join(known)}" if known else ""))
        if name in found and name != "mount":
            raise ValueError(f"--{name} is given twice")
        if not match[2] and name != "link":
            raise ValueError(f"--{name} needs a value: --{name}=...")
        found[name] = f"{found[name]} {match[2]}" if name in found else match[2] or ""
        rest = rest[match.end() :]
    return found, rest


def _run(line: Line) -> Run:
    flags, rest = _flags(line.rest, "mount")
    mounts = flags.get("mount", "").split()
    for mount in mounts:
        if "type=cache" not in mount.split(","):
            raise ValueError(f"--mount={mount} is not supported; there is type=cache: COPY what the command needs")
    command = _command(rest)
    if not command.words:
        raise ValueError("expected a command")
    return Run(command, line.heredocs, bool(mounts))


def _shell(line: Line) -> Shell:
    words = _json_list(line.rest)
    if not words:
        raise ValueError('expected a list in JSON, such as ["/bin/bash", "-c"]')
    return Shell(tuple(words))


def _remark(line: Line) -> Remark:
    """Parse an instruction, such as EXPOSE, that has no effect and needs at least one word."""
    _one(line.rest)
    return Remark()


def _command(rest: str) -> Command:
    """Parse the command of RUN, CMD or ENTRYPOINT: a JSON list is run as it is, anything else by the shell."""
    words = _json_list(rest)
    return Command((_one(rest),), shell=True) if words is None else Command(tuple(words), shell=False)


def _json_list(text: str) -> list[str] | None:
    """Return the strings of a JSON list, or None if the text is no JSON list."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found: list[str] = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(word, str) for word in found):
        raise ValueError("a list in JSON with something else than strings")
    return found


def _require_few(variables: Sequence[object]) -> None:
    if len(variables) > _MOST_VARIABLES:
        raise ValueError(f"{len(variables)} variables; at most {_MOST_VARIABLES} are possible")


def _one(rest: str) -> str:
    """Return the text without surrounding space, or raise ValueError if nothing is left."""
    if not rest.strip():
        raise ValueError("expected at least one word after the instruction")
    return rest.strip()


def _name(name: str) -> str:
    """Return the name of a variable, or raise ValueError if it cannot be one."""
    if not name or any(char in name for char in "\"'$ \t"):
        raise ValueError(f"{name!r} is not a name")
    return name
