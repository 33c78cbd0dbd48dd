"""A typed, read-only view of a Harbor task.toml, schema 1.0 to 1.4.

`write_task` writes the document that was read (`Task.config`), not this view, so unknown keys and old spellings
survive. The view understands the old spellings: version, allow_internet, and memory and storage as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from etude.tasks.task import TaskError

GRADING_FOLDERS = ("/tests", "/solution", "/logs/verifier")
"""Folders that grading itself uses: no artifact may lie in one of them or contain one."""
_EXPECTED_VALUES = {
    "model_type": "a table",
    "dict_type": "a table",
    "list_type": "a list",
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "greater_than": "a number above 0",
    "string_too_short": "text that is not empty",
}
"""For each of pydantic's error types, the value that was expected, in TOML's terms."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_MEGABYTES = {"K": 1 / 1024, "": 1 / (1024 * 1024), "M": 1, "G": 1024, "T": 1024 * 1024}


def _one_of(*kinds: type, becoming: Callable[[Any], object]) -> BeforeValidator:
    """Return a validator that converts values of the types `kinds` with `becoming`, since Harbor allows some values in
    two forms. A bool is not an int here."""

    def convert(found: object) -> object:
        return becoming(found) if isinstance(found, kinds) and not isinstance(found, bool) else found

    return BeforeValidator(convert)


def _name(found: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", found):
        raise ValueError("a plain folder name")
    return found


def _version(found: str) -> str:
    if found.split(".")[0] != "1":
        raise ValueError("1.x")
    return found


def _absolute(found: str) -> str:
    if not found.startswith("/") or ".." in found.split("/"):
        raise ValueError("an absolute path")
    return found


Seconds = Annotated[float, Field(gt=0)]
User = Annotated[str, _one_of(int, becoming=str), Field(min_length=1)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
NetworkMode = Literal["public", "no-network", "allowlist"]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class Author(_Table):
    name: str = ""
    email: str = ""


class Identity(_Table):
    """The [task] table of a Harbor task.toml."""

    name: str = ""
    """Name of the task, in the form "organisation/name"."""
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []


class Healthcheck(_Table):
    command: str
    interval_sec: float = Field(5.0, ge=0)
    timeout_sec: Seconds = 30.0
    start_period_sec: float = Field(0.0, ge=0)
    start_interval_sec: float = Field(5.0, ge=0)
    retries: int = Field(3, ge=1)


class McpServer(_Table):
    name: str
    transport: Literal["sse", "streamable-http", "stdio"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []

    @model_validator(mode="after")
    def _reachable(self) -> McpServer:
        needed = "command" if self.transport == "stdio" else "url"
        if not getattr(self, needed):
            raise ValueError(f"a {needed}, which {self.transport} needs")
        return self


class _Phase(_Table):
    """Settings that the tables [agent], [verifier] and [environment] share."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] = []

    @model_validator(mode="after")
    def _hosts_of_a_list(self) -> _Phase:
        if self.network_mode == "allowlist" and not self.allowed_hosts:
            raise ValueError("allowed_hosts, which allowlist needs")
        return self


class Environment(_Phase):
    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    cpus: float | None = Field(None, gt=0)
    memory_mb: int | None = Field(None, gt=0)
    storage_mb: int | None = Field(None, gt=0)
    gpus: int | None = Field(None, ge=0)
    gpu_types: list[str] | None = None
    env: dict[str, str] = {}
    workdir: AbsolutePath | None = None
    skills_dir: str | None = None
    mcp_servers: list[McpServer] = []
    healthcheck: Healthcheck | None = None
    os: Literal["linux", "windows"] = "linux"

    @model_validator(mode="before")
    @classmethod
    def _old_spellings(cls, found: Any) -> Any:
        if not isinstance(found, Mapping):
            return found
        new = dict(found)
        for old in ("memory", "storage"):
            if old in new:
                new.setdefault(f"{old}_mb", _megabytes(old, new.pop(old)))
        if "allow_internet" in new:
            allowed = new.pop("allow_internet")
            if not isinstance(allowed, bool):
                raise ValueError(f"allow_internet as true or false, found {allowed!r}")
            new.setdefault("network_mode", "public" if allowed else "no-network")
        return new


class Artifact(_Table):
    source: str = Field(min_length=1)
    """Path in the agent's box: absolute, or relative to the workdir."""
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    @model_validator(mode="after")
    def _outside_grading_folders(self) -> Artifact:
        parts = PurePosixPath(self.source)
        if ".." in parts.parts:
            raise ValueError("a path without ..")
        if any(PurePosixPath(place).is_relative_to(parts) or parts.is_relative_to(place) for place in GRADING_FOLDERS):
            raise ValueError(f"a path that holds none of {', '.join(GRADING_FOLDERS)}")
        return self


Artifacts = list[Annotated[Artifact, _one_of(str, becoming=lambda source: {"source": source})]]


class Collect(_Table):
    """One [[verifier.collect]] table: a command that runs in the agent's box after the agent."""

    command: str
    timeout_sec: Seconds = 60.0


class Agent(_Phase):
    timeout_sec: Seconds | None = None
    user: User | None = None


class Verifier(_Phase):
    timeout_sec: Seconds = 600.0
    env: dict[str, str] = {}
    user: User | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = []

    @property
    def separate(self) -> bool:
        """Whether the verifier runs in its own box. By default it does if it has its own environment."""
        return (self.environment_mode or ("separate" if self.environment else "shared")) == "separate"


class Solution(_Table):
    env: dict[str, str] = {}


class Step(_Table):
    """One [[steps]] table. Agent and verifier settings that the step omits are taken from the task."""

    name: Annotated[str, AfterValidator(_name)]
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: Annotated[dict[str, float], _one_of(int, float, becoming=lambda reward: {"reward": reward})] = {}
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = []


class Harbor(_Table):
    schema_version: Annotated[str, AfterValidator(_version)] = "1.0"
    task: Identity = Identity()
    metadata: dict[str, Any] = {}
    source: str | None = None
    artifacts: Artifacts = []
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    solution: Solution = Solution()
    environment: Environment = Environment()
    steps: list[Step] = []
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"

    @model_validator(mode="before")
    @classmethod
    def _old_spelling(cls, found: Any) -> Any:
        if isinstance(found, Mapping) and "version" in found:
            found = {**found, "schema_version": found.get("schema_version", found["version"])}
            del found["version"]
        return found

    @model_validator(mode="after")
    def _steps_by_name(self) -> Harbor:
        names = [step.name for step in self.steps]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"steps with different names, found {twice!r} twice")
        return self


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a task that is graded by itself: one step, or the whole task if it has no steps."""

    name: str
    """Name of the step; empty for a task without steps."""
    agent: Agent
    verifier: Verifier
    healthcheck: Healthcheck | None
    artifacts: tuple[Artifact, ...]
    min_reward: Mapping[str, float]

    def folder(self, directory: Path) -> Path:
        """Return the folder that holds instruction.md, tests/ and solution/ of this part."""
        return directory / "steps" / self.name if self.name else directory


def parts_of(harbor: Harbor) -> tuple[Part, ...]:
    check, shared = harbor.environment.healthcheck, tuple(harbor.artifacts)
    if not harbor.steps:
        return (Part("", harbor.agent, harbor.verifier, check, shared, {}),)
    return tuple(
        Part(
            step.name,
            _merged(harbor.agent, step.agent),
            _merged(harbor.verifier, step.verifier),
            step.healthcheck or check,
            (*shared, *step.artifacts),
            step.min_reward,
        )
        for step in harbor.steps
    )


def parse_harbor(config: Mapping[str, Any], path: Path) -> Harbor:
    """Parse a task.toml. A TaskError names the file, the field and what was expected there."""
    try:
        return Harbor.model_validate(config)
    except ValidationError as error:
        first, *others = mistakes(error)
        more = f" (and {len(others)} more)" if others else ""
        raise TaskError(f"{path}: {first}{more}") from error


def harbor_mistakes(config: Mapping[str, Any]) -> list[str]:
    """Return all mistakes in a task.toml, so that its author can fix them in one go."""
    try:
        Harbor.model_validate(config)
    except ValidationError as error:
        return mistakes(error)
    return []


def mistakes(error: ValidationError) -> list[str]:
    """Describe each validation error in one line that names the field, what was expected and what was found."""
    found = []
    for item in error.errors():
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]).lstrip(".")
        expected = _EXPECTED_VALUES.get(item["type"]) or item["msg"].removeprefix("Value error, ").removeprefix(
            "Input should be "
        )
        if item["type"] == "missing":
            found.append(f"{place}: expected a value, there is none")
        elif item["type"] == "value_error" and not isinstance(item["input"], str | int | float):
            found.append(f"{place}: expected {expected}".lstrip(": "))
        else:
            found.append(f"{place}: expected {expected}, found {item['input']!r}")
    return found


def unknown_keys(table: BaseModel, place: str = "") -> Iterator[str]:
    """Yield the keys that Harbor's schema does not define. They are kept, but may be typing mistakes."""
    for key in table.model_extra or {}:
        yield f"{place}{key}"
    for key in type(table).model_fields:
        value = getattr(table, key)
        for number, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, BaseModel):
                inner = f"{place}{key}[{number}]." if isinstance(value, list) else f"{place}{key}."
                yield from unknown_keys(item, inner)


def _merged(ours: Any, theirs: Any) -> Any:
    """Return the task's table `ours`, overridden by the settings in the step's table `theirs`."""
    return ours.model_copy(update={name: getattr(theirs, name) for name in theirs.model_fields_set})


def _megabytes(field: str, text: object) -> int:
    found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if not found:
        raise ValueError(f'{field} as a size such as "2G", found {text!r}')
    return max(1, round(float(found[1]) * _MEGABYTES[found[2].upper()]))
