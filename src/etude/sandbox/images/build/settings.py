"""The state of a build stage: its image, with the variables, user, folder, shell and commands that instructions set.
Pure functions; nothing is run here."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field, replace

from etude.sandbox.images.build.instructions import Arg, Cmd, Command, Entrypoint, Env, Shell, User
from etude.sandbox.images.build.variables import VariableLimits, expand, expand_document
from etude.sandbox.images.host_base import PATH
from etude.sandbox.images.image import HOST, Image, ImageConfig

_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class StageState:
    """State of a build stage after some of its instructions. `escape` is the Dockerfile's escape character."""

    image: Image
    escape: str
    arguments: dict[str, str] = field(default_factory=dict)
    """Values of the build arguments (ARG) declared so far, by name. Arguments without a value are left out."""
    has_command: bool = False
    """Whether the stage itself has a CMD. A CMD of its base does not count."""

    @property
    def config(self) -> ImageConfig:
        return self.image.config

    @property
    def variables(self) -> dict[str, str]:
        """The variables that instructions can use, with their values. An ENV hides an ARG of the same name."""
        path = PATH if self.image.base == HOST else _USUAL_PATH
        return {"PATH": path, **self.arguments, **dict(self.config.env)}

    def expand(self, text: str) -> str:
        return expand(text, self.variables, self.escape)

    def expand_document(self, text: str) -> str:
        return expand_document(text, self.variables, self.escape)

    def with_config(self, **changes: object) -> StageState:
        config = replace(self.config, **changes)  # type: ignore[arg-type]
        return replace(self, image=replace(self.image, config=config))

    def with_files_of(self, image: Image) -> StageState:
        return replace(self, image=replace(self.image, layers=image.layers))

    def folder(self, path: str) -> str:
        """Return `path` as an absolute path. A relative path starts at the workdir."""
        return "/" + posixpath.normpath(posixpath.join("/", self.config.workdir, path)).lstrip("/")

    def target(self, path: str) -> str:
        """Return the absolute target path of a COPY or ADD, with a trailing / if the target must be a folder."""
        must = path.endswith("/") or posixpath.basename(path) in (".", "..")
        return posixpath.join(self.folder(path), "") if must else self.folder(path)

    def command_line(self, command: Command) -> tuple[str, ...]:
        """Return the words to execute, with the stage's shell if the command is in shell form."""
        return (*self.config.shell, *command.words) if command.shell else command.words


def declare(state: StageState, action: Arg, given: dict[str, str], defaults: dict[str, str]) -> StageState:
    """Apply an ARG instruction. Its value comes from `given` (the caller's values), else from the instruction's own
    default, else from `defaults`."""
    arguments, variables, env = dict(state.arguments), state.variables, dict(state.config.env)
    limits = VariableLimits(arguments)
    for name, default in action.names:
        if name in given:
            arguments[name] = given[name]
        elif default is not None:
            arguments[name] = limits.take(expand(default, variables, state.escape))
        elif name in defaults:
            arguments[name] = defaults[name]
        if name in arguments and name not in env:
            variables[name] = arguments[name]
    return replace(state, arguments=arguments)


def apply_setting(state: StageState, action: Env | User | Shell | Entrypoint | Cmd) -> StageState:
    match action:
        case Env(pairs):
            # Expand all values with the variables from before this instruction.
            variables, env = state.variables, dict(state.config.env)
            limits = VariableLimits(env)
            fresh = {name: limits.take(expand(value, variables, state.escape)) for name, value in pairs}
            return state.with_config(env=tuple({**env, **fresh}.items()))
        case User(name):
            user = state.expand(name)
            if not user:
                raise ValueError("the name of the user is empty")
            return state.with_config(user=user)
        case Shell(words):
            return state.with_config(shell=words)
        case Cmd(command):
            return replace(state.with_config(command=state.command_line(command)), has_command=True)
        case Entrypoint(command):
            # Drop the base's CMD: it holds arguments for the base's own entrypoint.
            kept = state.config.command if state.has_command else ()
            return state.with_config(entrypoint=state.command_line(command), command=kept)
