"""Tasks, boxes, the harness and the engine."""

from __future__ import annotations

from math import isclose
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from etude.recipe.section import Section


class CellsRecipe(Section):
    """What the test asks for: the shares of four cells, which make 1."""

    both_seen: float = Field(0.4, ge=0, le=1)
    """Families and kinds of bug that training has, in instances that it has not."""
    unseen_family: float = Field(0.25, ge=0, le=1)
    """Families that training has not."""
    unseen_kind: float = Field(0.2, ge=0, le=1)
    """Kinds of bug that training has not, in families that it has."""
    both_unseen: float = Field(0.15, ge=0, le=1)
    """Neither the family nor the kind was in training."""

    @model_validator(mode="after")
    def _whole(self) -> CellsRecipe:
        if not isclose(sum(self.model_dump().values()), 1.0, abs_tol=1e-6):
            raise ValueError("expected both_seen, unseen_family, unseen_kind and both_unseen to make 1")
        return self


class TasksRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"test_draw"})
    source: Literal["microrepo"] = "microrepo"
    """Where tasks come from."""
    train: int = Field(400, ge=1)
    """Tasks to learn from: demonstrations and RL."""
    dev: int = Field(48, ge=1)
    """Tasks of the evaluations during RL, by which settings are chosen."""
    test: int = Field(64, ge=1)
    """Tasks of the one evaluation at the end."""
    test_cells: CellsRecipe = CellsRecipe()
    test_draw: int = Field(0, ge=0)
    """Which drawing of test tasks; train and dev stay as they are. What was chosen with a look at one drawing is to be
    tested on another."""
    gate_runs: int = Field(3, ge=1)
    """How often the reference must pass before a task may be used."""


class SandboxRecipe(Section):
    backend: Literal["embedded", "oci"] = "embedded"
    """How boxes are made; "embedded" needs no daemon and no root, "oci" uses a Docker or podman engine."""
    mode: Literal["auto", "embedded", "bubblewrap", "landlock", "plain"] = "auto"
    """What keeps code in where there is no engine; "auto" takes the best that isolates (`etude sandbox doctor`).
    "landlock" and "plain" are for trusted code: they grade nothing."""
    hosts: int = Field(0, ge=0)
    """On so many nodes of the cluster boxes live, the driver's own first, and one scheduler places them
    (docs/fleet.md); 0: each process that uses boxes has its own, beside it."""
    endpoint: str = ""
    """Where the engine of "oci" listens: unix:///path/of.sock or tcp://host:port; empty: what DOCKER_HOST or
    CONTAINER_HOST names, else the first that answers of podman's and Docker's usual sockets, the user's own first."""
    runtime: str = ""
    """The engine's runtime for boxes, such as crun, runsc or kata; empty: the engine's default."""
    base: str = ""
    """What "oci" boxes stand on: an image of the engine, or a tar; empty: this host's system folders, read-only."""
    memory_mb: int = Field(256, ge=16)
    """Memory of one box."""
    processes: int = Field(32, ge=1)
    """Processes of one box."""
    command_seconds: float = Field(10.0, gt=0)
    """Declared limit of one shell command of the agent; reached on a host that gave it no time, it is our error."""


class PricesRecipe(Section):
    """What a million tokens cost, in whatever currency `harness.max_money` is in."""

    input: float = Field(0.0, ge=0)
    """Of a prompt."""
    cached: float = Field(0.0, ge=0)
    """Of a prompt, where the endpoint says that it had read them before."""
    output: float = Field(0.0, ge=0)
    """Sampled, thinking included."""


class HarnessRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset(
        {"format", "tokenizer", "compaction", "max_tool_seconds", "max_money", "prices"}
    )
    profile: Literal["compact", "full"] = "compact"
    """Prompts and tools of the agent; "compact" is short enough for a tiny model."""
    format: Literal["compact", "qwen3", "qwen3-coder", "kimi-k2", "deepseek-v3", "deepseek-v3.1"] = "compact"
    """The chat format of a model whose tokens we own. "compact" goes with the tokenizer that a run trains, the others
    with that of their model. An endpoint has a format of its own."""
    tokenizer: str = ""
    """Of a published format: the model's folder, or its tokenizer.json; empty: the run's own tokenizer.json."""
    max_turns: int = Field(10, ge=1)
    """Turns of a whole rollout."""
    max_tool_calls: int = Field(20, ge=1)
    """Tool calls of a whole rollout."""
    max_tokens: int = Field(640, ge=16)
    """Sampled tokens of a whole rollout."""
    max_turn_tokens: int = Field(64, ge=4)
    """Sampled tokens of one turn."""
    summary_trigger: int = Field(352, ge=0)
    """Tokens of context at which the harness asks for a self-summary; 0 never asks."""
    max_summary_tokens: int = Field(48, ge=4)
    """Sampled tokens of one self-summary."""
    compaction: Literal["self", "prompt"] = "self"
    """How a summary is asked for: "self" in the profile's own short words, which the model learns to answer; "prompt"
    with a long instruction that names every section, the usual baseline, which needs a larger `max_summary_tokens`."""
    max_output_tokens: int = Field(200, ge=16)
    """Tokens of one tool's output that the agent sees; the rest is cut, visibly."""
    max_tool_seconds: float = Field(0.0, ge=0)
    """Seconds that the commands of a whole rollout may run, by the clocks that bound them; those on a host that was
    short of time do not count. 0: no limit but that of each command."""
    max_money: float = Field(0.0, ge=0)
    """What the tokens of a whole rollout may cost by `prices`; 0: no limit."""
    prices: PricesRecipe = PricesRecipe()
    wall_seconds: float = Field(300.0, gt=0)
    """Safety net for a whole rollout: its expiry is our error, never the model's failure."""
    strict: bool = False
    """Tools take less: a file is changed only once it was read, patches fit exactly, ranges of lines must be there,
    `null` is no argument left out. A task may ask for it too."""
    without: list[str] = []
    """Tools of the profile that the agent does not get. A task may take away more."""

    @model_validator(mode="after")
    def _priced(self) -> HarnessRecipe:
        if self.max_money and not (self.prices.input or self.prices.output):
            raise ValueError("max_money needs prices: nothing costs anything without them")
        return self


class EngineRecipe(Section):
    slots: int = Field(96, ge=1)
    """Sequences decoded together; more rollouts than slots keep the batch from running dry."""
    context: int = Field(512, ge=32)
    """Tokens of one sequence, prompt included."""
    speculate: Literal["auto", "never", "always"] = "auto"
    """Draft one token with the MTP head and verify it in the next step; the distribution stays exact. "auto" does so
    where at most 8 `slots` share a step: in a fuller batch the tokens to verify cost more than the steps they save."""
    cache_slots: int = Field(256, ge=0)
    """Finished prefixes kept for reuse."""
    threads: int = Field(1, ge=0)
    """0 takes every core."""


class EvaluationRecipe(Section):
    samples: int = Field(4, ge=1)
    """Rollouts per task at temperature 1, for pass@1 and pass@k."""
    greedy: bool = True
    """Whether each task is also tried once without chance."""
    one_edit: int = Field(0, ge=0)
    """Rollouts per task, before and after RL, that may edit once only: they tell better repairs from more attempts.
    0 leaves them out."""
    concurrency: int = Field(128, ge=1)
    """Rollouts in flight together."""
