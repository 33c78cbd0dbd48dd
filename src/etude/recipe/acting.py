"""Recipe sections for tasks, sandboxes, the harness, the engine and the evaluation."""

from __future__ import annotations

from math import isclose
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from etude.recipe.section import Section


class CellsRecipe(Section):
    """Shares of the four cells of the test split, by whether training has seen a task's family and kind of bug. They
    sum to 1."""

    both_seen: float = Field(0.4, ge=0, le=1)
    """Share of test tasks whose family and kind of bug both occur in training. Their functions do not: training has
    other functions of the family."""
    unseen_family: float = Field(0.25, ge=0, le=1)
    """Share of test tasks whose family of functions does not occur in training, while their kind of bug does."""
    unseen_kind: float = Field(0.2, ge=0, le=1)
    """Share of test tasks whose kind of bug does not occur in training, while their family of functions does."""
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
    """Name of the generator that makes the tasks."""
    train: int = Field(400, ge=1)
    """Number of train tasks, used for demonstrations and RL."""
    dev: int = Field(48, ge=1)
    """Number of dev tasks, used by the evaluations during RL. Choose settings by the results on these."""
    test: int = Field(64, ge=1)
    """Number of test tasks, used by the evaluations before and after RL."""
    test_cells: CellsRecipe = CellsRecipe()
    test_draw: int = Field(0, ge=0)
    """Index of the random draw of test tasks, like a seed; train and dev tasks do not depend on it. If you chose
    settings by the results of one draw, test them on another."""
    gate_runs: int = Field(3, ge=1)
    """Number of times that a task's reference solution is graded before the task is used; all must pass."""


class SandboxRecipe(Section):
    backend: Literal["embedded", "oci"] = "embedded"
    """How sandboxes (boxes) are made: "embedded" needs no daemon and no root; "oci" uses a Docker or Podman engine."""
    mode: Literal["auto", "embedded", "bubblewrap", "landlock", "plain"] = "auto"
    """Isolation of the "embedded" backend's boxes. "auto" takes the strongest mode that works on this host
    (see `etude sandbox doctor`). "landlock" and "plain" are for trusted code only and cannot grade tasks."""
    hosts: int = Field(0, ge=0)
    """Number of cluster nodes that run boxes, the driver's node first; a scheduler places boxes on them
    (docs/fleet.md). With 0, every process runs its boxes on its own node."""
    endpoint: str = ""
    """Address of the container engine for "oci": unix:///path/of.sock or tcp://host:port. Empty means DOCKER_HOST or
    CONTAINER_HOST, else the first of Podman's and Docker's usual sockets that answers; the user's sockets are tried
    before the system's."""
    runtime: str = ""
    """Container runtime for "oci" boxes, such as crun, runsc or kata; empty means the container engine's default."""
    base: str = ""
    """Base image of "oci" boxes: the name of an image that the container engine has, or a tar file. Empty means this
    host's system folders, read-only."""
    memory_mb: int = Field(256, ge=16)
    """Memory limit of one box in MB."""
    processes: int = Field(32, ge=1)
    """Maximum number of processes in one box."""
    command_seconds: float = Field(10.0, gt=0)
    """Time limit of one shell command of the agent, in seconds. A timeout while the host is short of CPU time counts as
    an infrastructure error."""


class PricesRecipe(Section):
    """Prices per million tokens, in the currency of `harness.max_money`."""

    input: float = Field(0.0, ge=0)
    """Price of a million prompt tokens, except those that the endpoint reports as cached."""
    cached: float = Field(0.0, ge=0)
    """Price of a million prompt tokens that the endpoint reports as cached."""
    output: float = Field(0.0, ge=0)
    """Price of a million sampled tokens, thinking included."""


class HarnessRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset(
        {"format", "tokenizer", "compaction", "max_tool_seconds", "max_money", "prices"}
    )
    profile: Literal["compact", "full"] = "compact"
    """Set of prompts and tools that the agent has; those of "compact" are short enough for a tiny model."""
    format: Literal[
        "compact",
        "auto",
        "chatml",
        "qwen2.5",
        "qwen3",
        "qwen3-coder",
        "glm4.5",
        "llama3",
        "kimi-k2",
        "deepseek-v3",
        "deepseek-v3.1",
    ] = "compact"
    """Chat format of a model that Étude's own engine serves. "compact" works with the tokenizer that a run trains,
    every other format with the tokenizer of its model. "auto" takes "compact" for the former; for the latter, the
    format that writes what the chat template in the tokenizer's folder writes. Not used with endpoints, which render
    chats themselves."""
    tokenizer: str = ""
    """Tokenizer of a published chat format: the model's folder, or its tokenizer.json. Empty means the run's own
    tokenizer.json."""
    max_turns: int = Field(10, ge=1)
    """Maximum number of the model's turns in a rollout."""
    max_tool_calls: int = Field(20, ge=1)
    """Maximum number of tool calls in a rollout."""
    max_tokens: int = Field(640, ge=16)
    """Maximum number of sampled tokens in a rollout."""
    max_turn_tokens: int = Field(64, ge=4)
    """Maximum number of sampled tokens in a turn."""
    summary_trigger: int = Field(352, ge=0)
    """Length of the context, in tokens, at which the harness asks the model for a self-summary; 0 means never."""
    max_summary_tokens: int = Field(48, ge=4)
    """Maximum number of sampled tokens in a self-summary."""
    compaction: Literal["self", "prompt"] = "self"
    """How the model is asked for a summary. "self" uses a short request, part of the prompts that `profile` names,
    which the model learns to answer. "prompt", the usual baseline, uses a long instruction that names every section of
    the summary; it needs a larger `max_summary_tokens`."""
    max_output_tokens: int = Field(200, ge=16)
    """Maximum number of tokens in a tool output. Longer output is cut, with a note that says so."""
    max_tool_seconds: float = Field(0.0, ge=0)
    """Limit of the total seconds that a rollout's commands run. Commands that ran while the host was short of CPU time
    do not count. 0 means no limit besides that of each command."""
    max_money: float = Field(0.0, ge=0)
    """Limit of the cost of a rollout's tokens by `prices`; 0 means no limit."""
    prices: PricesRecipe = PricesRecipe()
    wall_seconds: float = Field(300.0, gt=0)
    """Wall-clock limit of a rollout in seconds, as a safety net. A rollout that exceeds it ends with an infrastructure
    error, which never counts as the model's failure."""
    strict: bool = False
    """Make tools stricter: a file must be read before it is changed, patches must match exactly, line ranges must
    exist, and `null` does not count as an omitted argument. A task may require this too."""
    without: list[str] = []
    """Names of tools to leave out of the set that `profile` gives the agent. A task may leave out more."""

    @model_validator(mode="after")
    def _priced(self) -> HarnessRecipe:
        if self.max_money and not (self.prices.input or self.prices.output):
            raise ValueError("max_money needs prices: set prices.input or prices.output, or max_money = 0")
        return self


class VllmRecipe(Section):
    python: str = ""
    """Interpreter that vLLM is installed for. Empty means the one that `make vllm` sets up."""
    any_version: bool = False
    """Whether to run versions of vLLM that this engine was not tested with. Wrong log-probs are found at the start and
    after each update, but not every other fault."""


class EngineRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"gpu_gib", "kind", "vllm", "cache_at_swap"})
    FITTING: ClassVar[frozenset[str]] = frozenset({"slots", "cache_slots"})
    COMPARED: ClassVar[frozenset[str]] = FITTING

    kind: Literal["builtin", "vllm"] = "builtin"
    """Engine that generates: our own, or vLLM, which `make vllm` installs for an interpreter of its own."""
    slots: int = Field(96, ge=1)
    """Maximum number of sequences decoded in one batch. Run more rollouts than slots, so that the batch stays full."""
    context: int = Field(512, ge=32)
    """Maximum length of a sequence in tokens, prompt included."""
    speculate: Literal["auto", "never", "always"] = "auto"
    """Speculative decoding: draft one token with the MTP head and verify it in the next step. It does not change the
    distribution of tokens. "auto" drafts if there are at most 8 `slots`; in a larger batch, verification costs more
    than drafts save."""
    cache_slots: int = Field(256, ge=0)
    """Number of finished sequences whose KV cache is kept, so that later prompts can reuse their prefixes."""
    cache_at_swap: Literal["reset", "salt", "keep"] = "reset"
    """What happens to cached prefixes when new weights arrive. "reset" drops them: a request sent afterwards reads
    nothing that older weights computed. "salt" lets conversations that have begun go on with their own, while new ones
    read nothing older than themselves. "keep" lets every request read entries of any version. The last two save
    computing, at the price of log-probs further from the trainer's."""
    threads: int = Field(1, ge=0)
    """Number of CPU threads of the engine; 0 means one per available core."""
    gpu_gib: float = Field(0.0, ge=0)
    """Maximum memory of the engine on a GPU, in GiB, so that the trainer has the rest; 0 sets no limit. The weights and
    the cache of all `slots` and `cache_slots` must fit."""
    vllm: VllmRecipe = VllmRecipe()


class EvaluationRecipe(Section):
    samples: int = Field(4, ge=1)
    """Number of rollouts per task at temperature 1, for pass@1 and pass@k, where this number is k."""
    greedy: bool = True
    """Whether each task also gets one rollout with greedy decoding."""
    one_edit: int = Field(0, ge=0)
    """Number of extra rollouts per test task, before and after RL, in which the agent may edit only once. They show
    whether RL improved the edits themselves or only the number of attempts. 0 leaves them out."""
    concurrency: int = Field(128, ge=1)
    """Number of evaluation rollouts that run at the same time."""
