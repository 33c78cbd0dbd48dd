"""Recipe sections for tasks, sandboxes, the harness, the engine and the evaluation."""

from __future__ import annotations

from math import isclose
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from etude.recipe.section import Section


class CellsRecipe(Section):
    """How the test split is divided into four cells, by what training has seen. The four shares sum to 1."""

    both_seen: float = Field(0.4, ge=0, le=1)
    """Share of test tasks whose family and kind of bug both occur in training, in other instances."""
    unseen_family: float = Field(0.25, ge=0, le=1)
    """Share of test tasks whose family does not occur in training; their kind of bug does."""
    unseen_kind: float = Field(0.2, ge=0, le=1)
    """Share of test tasks whose kind of bug does not occur in training; their family does."""
    both_unseen: float = Field(0.15, ge=0, le=1)
    """Share of test tasks of which neither the family nor the kind of bug occurs in training."""

    @model_validator(mode="after")
    def _whole(self) -> CellsRecipe:
        if not isclose(sum(self.model_dump().values()), 1.0, abs_tol=1e-6):
            raise ValueError("both_seen, unseen_family, unseen_kind and both_unseen must sum to 1")
        return self


class TasksRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"test_draw"})
    source: Literal["microrepo"] = "microrepo"
    """The generator of tasks."""
    train: int = Field(400, ge=1)
    """Number of train tasks, used for demonstrations and RL."""
    dev: int = Field(48, ge=1)
    """Number of dev tasks, used by the evaluations during RL. Choose settings by these."""
    test: int = Field(64, ge=1)
    """Number of test tasks, used by the one evaluation at the end."""
    test_cells: CellsRecipe = CellsRecipe()
    test_draw: int = Field(0, ge=0)
    """Index of the draw of test tasks; train and dev tasks do not depend on it. If you chose settings by one draw, test
    them on another."""
    gate_runs: int = Field(3, ge=1)
    """How many runs of the reference solution must all pass before a task is used."""


class SandboxRecipe(Section):
    backend: Literal["embedded", "oci"] = "embedded"
    """How sandboxes (boxes) are made: "embedded" needs no daemon and no root; "oci" uses a Docker or Podman engine."""
    mode: Literal["auto", "embedded", "bubblewrap", "landlock", "plain"] = "auto"
    """What isolates code without a container engine. "auto" takes the best mode that isolates code on this host
    (see `etude sandbox doctor`). "landlock" and "plain" are for trusted code only and cannot grade tasks."""
    hosts: int = Field(0, ge=0)
    """Number of cluster nodes that run boxes, the driver's first; a scheduler places the boxes on them (docs/fleet.md).
    With 0, every process runs its boxes on its own node."""
    endpoint: str = ""
    """Address of the container engine for "oci": unix:///path/of.sock or tcp://host:port. Empty means DOCKER_HOST or
    CONTAINER_HOST, else the first of Podman's and Docker's usual sockets that answers, the user's own before the
    system's."""
    runtime: str = ""
    """The container engine's runtime for boxes, such as crun, runsc or kata; empty means the engine's default."""
    base: str = ""
    """Base image of "oci" boxes: an image of the engine, or a tar file. Empty means this host's system folders,
    read-only."""
    memory_mb: int = Field(256, ge=16)
    """Memory limit of one box in MB."""
    processes: int = Field(32, ge=1)
    """Process limit of one box."""
    command_seconds: float = Field(10.0, gt=0)
    """Time limit of one shell command of the agent, in seconds. A timeout on a host short of CPU time counts as an
    infrastructure error, not as the agent's."""


class PricesRecipe(Section):
    """Prices per million tokens, in the currency of `harness.max_money`."""

    input: float = Field(0.0, ge=0)
    """Price of prompt tokens."""
    cached: float = Field(0.0, ge=0)
    """Price of prompt tokens that the endpoint reports as cached."""
    output: float = Field(0.0, ge=0)
    """Price of sampled tokens, thinking included."""


class HarnessRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset(
        {"format", "tokenizer", "compaction", "max_tool_seconds", "max_money", "prices"}
    )
    profile: Literal["compact", "full"] = "compact"
    """The agent's prompts and tools; those of "compact" are short enough for a tiny model."""
    format: Literal["compact", "qwen3", "qwen3-coder", "kimi-k2", "deepseek-v3", "deepseek-v3.1"] = "compact"
    """Chat format of a model that our own engine serves. "compact" works with the tokenizer that a run trains, each
    other format with the tokenizer of its model. It does not apply to endpoints, which render chats themselves."""
    tokenizer: str = ""
    """Tokenizer of a published format: the model's folder, or its tokenizer.json. Empty means the run's own
    tokenizer.json."""
    max_turns: int = Field(10, ge=1)
    """Limit of turns per rollout."""
    max_tool_calls: int = Field(20, ge=1)
    """Limit of tool calls per rollout."""
    max_tokens: int = Field(640, ge=16)
    """Limit of sampled tokens per rollout."""
    max_turn_tokens: int = Field(64, ge=4)
    """Limit of sampled tokens per turn."""
    summary_trigger: int = Field(352, ge=0)
    """Length of the context, in tokens, at which the harness asks for a self-summary; 0 means never."""
    max_summary_tokens: int = Field(48, ge=4)
    """Limit of sampled tokens per self-summary."""
    compaction: Literal["self", "prompt"] = "self"
    """How a summary is requested. "self" uses the profile's short request, which the model learns to answer. "prompt"
    uses a long instruction that names every section, the usual baseline; it needs a larger `max_summary_tokens`."""
    max_output_tokens: int = Field(200, ge=16)
    """Limit of tokens per tool output. Longer output is cut, with a note that says so."""
    max_tool_seconds: float = Field(0.0, ge=0)
    """Limit of seconds that the commands of a rollout run in total. Commands on a host short of CPU time do not count.
    0 means no limit besides that of each command."""
    max_money: float = Field(0.0, ge=0)
    """Limit of the cost of a rollout's tokens by `prices`; 0 means no limit."""
    prices: PricesRecipe = PricesRecipe()
    wall_seconds: float = Field(300.0, gt=0)
    """Wall-clock limit of a rollout, as a safety net. If it expires, that is an infrastructure error, never the model's
    failure."""
    strict: bool = False
    """Make tools stricter: a file must be read before it is changed, patches must match exactly, line ranges must
    exist, and `null` does not count as an omitted argument. A task may require this too."""
    without: list[str] = []
    """Tools of the profile to leave out. A task may leave out more."""

    @model_validator(mode="after")
    def _priced(self) -> HarnessRecipe:
        if self.max_money and not (self.prices.input or self.prices.output):
            raise ValueError("max_money needs prices: set prices.input or prices.output, or max_money = 0")
        return self


class EngineRecipe(Section):
    slots: int = Field(96, ge=1)
    """Sequences decoded in one batch. Run more rollouts than slots, so that the batch stays full."""
    context: int = Field(512, ge=32)
    """Longest sequence in tokens, prompt included."""
    speculate: Literal["auto", "never", "always"] = "auto"
    """Speculative decoding: draft one token with the MTP head and verify it in the next step. It does not change the
    distribution. "auto" drafts if there are at most 8 `slots`; in a larger batch, verifying costs more than it
    saves."""
    cache_slots: int = Field(256, ge=0)
    """Finished sequences whose KV cache is kept, to reuse their prefixes."""
    threads: int = Field(1, ge=0)
    """CPU threads of the engine; 0 means every core."""


class EvaluationRecipe(Section):
    samples: int = Field(4, ge=1)
    """Rollouts per task at temperature 1, for pass@1 and pass@k; this is k."""
    greedy: bool = True
    """Whether each task also gets one rollout with greedy decoding."""
    one_edit: int = Field(0, ge=0)
    """Rollouts per test task, before and after RL, in which the agent may edit only once. They show whether RL improved
    the edits themselves or only the number of attempts. 0 leaves them out."""
    concurrency: int = Field(128, ge=1)
    """Rollouts that run at the same time."""
