"""The instructions of a Dockerfile as values: one class per instruction that a build acts on."""

from __future__ import annotations

from dataclasses import dataclass

from etude.sandbox.images.build.lines import Heredoc


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[str, ...]
    """The command's words. In shell form, a single word that is the whole line."""
    shell: bool
    """Whether the stage's shell runs the command."""


@dataclass(frozen=True, slots=True)
class Arg:
    names: tuple[tuple[str, str | None], ...]
    """The variables that the instruction declares, as (name, default); the default is None if none is given. Variables
    in defaults are not expanded yet."""


@dataclass(frozen=True, slots=True)
class Env:
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Run:
    command: Command
    heredocs: tuple[Heredoc, ...] = ()
    cache_mounts: bool = False
    """Whether the RUN asks for cache mounts. Here they are plain folders and become part of the image."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A COPY or ADD instruction. Variables in its texts are not expanded yet. In the option --from (the attribute
    `stage`) they are never expanded, since the stages to build are chosen before any variable of a stage is known."""

    sources: tuple[str, ...]
    target: str
    heredocs: tuple[Heredoc, ...] = ()
    stage: str = ""
    """The stage or image to copy from. Empty: the build context."""
    owner: str = ""
    mode: str = ""
    unpack: bool = False
    """Whether tar archives are unpacked, as ADD does."""


@dataclass(frozen=True, slots=True)
class Workdir:
    path: str


@dataclass(frozen=True, slots=True)
class User:
    name: str


@dataclass(frozen=True, slots=True)
class Shell:
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entrypoint:
    command: Command


@dataclass(frozen=True, slots=True)
class Cmd:
    command: Command


@dataclass(frozen=True, slots=True)
class Remark:
    """A LABEL, EXPOSE, MAINTAINER or STOPSIGNAL instruction, which has no effect on a box."""


Action = Arg | Env | Run | Copy | Workdir | User | Shell | Entrypoint | Cmd | Remark


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    text: str
    """The instruction as written, on one line, for messages."""
    action: Action


@dataclass(frozen=True, slots=True)
class Stage:
    index: int
    name: str
    """The stage's name in lower case, since stage names are case-insensitive. Empty if the stage has none."""
    base: str
    """The image or stage that this stage starts from. Variables in it are not expanded yet."""
    platform: str
    line: int
    text: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    file: str
    escape: str
    arguments: tuple[Instruction, ...]
    """The ARG instructions before the first FROM. They give values to variables in FROM lines, and defaults to later
    ARGs of the same name."""
    stages: tuple[Stage, ...]

    def stage_before(self, name: str, index: int) -> Stage | None:
        """Return the stage with this name or number, if it comes before stage `index`. None if there is none, in which
        case the name is that of an image."""
        for stage in reversed(self.stages[:index]):
            if name and name.lower() in (stage.name, str(stage.index)):
                return stage
        return None
