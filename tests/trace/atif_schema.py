"""ATIF 1.7 as its RFC 0001 has it, strict: what is not in the RFC is refused. An independent reading, for the tests."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Agent(Strict):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class ToolCall(Strict):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class Result(Strict):
    source_call_id: str | None = None
    content: str | None = None
    extra: dict[str, Any] | None = None


class Observation(Strict):
    results: list[Result]


class Metrics(Strict):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class Step(Strict):
    step_id: int = Field(ge=1)
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    message: str
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    llm_call_count: int | None = Field(None, ge=0)
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def rules(self) -> Self:
        if self.timestamp is not None:
            datetime.fromisoformat(self.timestamp)
        if self.source != "agent":
            agents = (self.model_name, self.reasoning_content, self.tool_calls, self.metrics)
            assert all(value is None for value in agents), "fields of agents"
        made = {call.tool_call_id for call in self.tool_calls or ()}
        for result in self.observation.results if self.observation else ():
            assert result.source_call_id is None or result.source_call_id in made
        return self


class FinalMetrics(Strict):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = Field(None, ge=0)
    extra: dict[str, Any] | None = None


class Trajectory(Strict):
    schema_version: Literal["ATIF-v1.7"]
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: Agent
    steps: list[Step] = Field(min_length=1)
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def in_order(self) -> Self:
        assert [step.step_id for step in self.steps] == list(range(1, len(self.steps) + 1))
        if self.final_metrics is not None:
            assert self.final_metrics.total_steps == len(self.steps)
        return self
