"""The instructions of a Dockerfile as values: one class per instruction that a build acts on."""

from __future__ import annotations

from dataclasses import dataclass

from etude.sandbox.images.build.lines import Heredoc


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[str, ...]
    """In shell form a single word, for the stage's shell."""
    shell: bool


@dataclass(frozen=True, slots=True)
class Arg:
    names: tuple[tuple[str, str | None], ...]
    """Names with their defaults, unexpanded."""


@dataclass(frozen=True, slots=True)
class Env:
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Run:
    command: Command
    heredocs: tuple[Heredoc, ...] = ()
    cache_mounts: bool = False
    """It asked for cache mounts that other builds fill. Here they are plain folders and become part of the image."""


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY and ADD. All texts are unexpanded, except `stage`, which decides what must be built first."""

    sources: tuple[str, ...]
    target: str
    heredocs: tuple[Heredoc, ...] = ()
    stage: str = ""
    """The stage or image to copy from; empty: the build context."""
    owner: str = ""
    mode: str = ""
    unpack: bool = False
    """True for ADD: tar archives are unpacked."""


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
    """LABEL, EXPOSE, MAINTAINER or STOPSIGNAL, which a box does not use."""


Action = Arg | Env | Run | Copy | Workdir | User | Shell | Entrypoint | Cmd | Remark


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    text: str
    """As written, on one line, for messages."""
    action: Action


@dataclass(frozen=True, slots=True)
class Stage:
    index: int
    name: str
    """In lower case, as names are compared; empty if the stage has none."""
    base: str
    """The image or stage it starts from, unexpanded."""
    platform: str
    line: int
    text: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    file: str
    escape: str
    arguments: tuple[Instruction, ...]
    """The ARGs before the first FROM: variables of FROM lines, and defaults for ARGs of the same name."""
    stages: tuple[Stage, ...]

    def stage_before(self, name: str, index: int) -> Stage | None:
        """The stage that a FROM or --from in stage `index` refers to: an earlier one, by name or number."""
        for stage in reversed(self.stages[:index]):
            if name and name.lower() in (stage.name, str(stage.index)):
                return stage
        return None
