"""The policy that samples from an inference engine. It records the token ids that it sends and receives, which are
exactly the ids that training uses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from etude.engine.protocol import ContextExceeded, Engine, EngineError, GenerateRequest, Sampling
from etude.harness.policy import ContextFull, PolicyError
from etude.harness.schema import ToolSchema
from etude.text.format import Format
from etude.trace.builder import TraceBuilder
from etude.trace.conversation.messages import Conversation, Turn
from etude.trace.conversation.transcript import Transcript
from etude.trace.conversation.turn_tokens import parse_turn


@dataclass(frozen=True, slots=True)
class TokenSampling:
    context: int
    temperature: float = 1.0
    seed: int = 0


class TokenPolicy:
    """Samples the turns of one rollout from an engine. `conversation` is the id under which the engine knows the
    rollout; `recorder` gets the tokens."""

    def __init__(
        self,
        engine: Engine,
        form: Format,
        schemas: Sequence[ToolSchema],
        sampling: TokenSampling,
        recorder: TraceBuilder,
        *,
        conversation: str,
        name: str = "model",
    ) -> None:
        self._engine = engine
        self._form = form.offering([schema.openai() for schema in schemas])
        self._schemas = {schema.name: schema.call_schema() for schema in schemas}
        self._sampling = sampling
        self.recorder = recorder
        self._transcript = Transcript(self._form, recorder, self._schemas)
        self._conversation = conversation
        self.name = name
        self._turns = 0

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        prompt = self._transcript.prompt(conversation)
        room = self._sampling.context - len(prompt)
        if room < 1:
            raise ContextFull(f"the prompt has {len(prompt)} tokens, the context holds {self._sampling.context}")
        request = GenerateRequest(
            id=f"{self._conversation}:{self._turns}",
            prompt=np.array(prompt, np.int32),
            sampling=Sampling(
                max_tokens=min(max_tokens, room),
                stop=self._form.stop_ids,
                temperature=self._sampling.temperature,
                seed=_seed(self._sampling.seed, self._turns),
            ),
            conversation=self._conversation,
            experts_from=self._transcript.experts_from(conversation),
        )
        try:
            generation = await self._engine.generate(request)
        except ContextExceeded as error:
            raise ContextFull(str(error)) from error
        except EngineError as error:
            raise PolicyError(f"{type(error).__name__}: {error}") from error
        except asyncio.CancelledError:
            with suppress(EngineError):
                await self._engine.abort(request.id)
            raise
        self._transcript.sampled(
            conversation,
            generation.tokens,
            generation.logprobs,
            generation.versions,
            generation.experts,
            generation.experts_from,
        )
        self._turns += 1
        turn = parse_turn(self._form, generation.tokens.tolist(), self._schemas, str(self._turns))
        return replace(turn, prompt_tokens=len(prompt), cached_tokens=generation.usage.cached_tokens)

    def tokens(self, conversation: Conversation) -> int:
        return self._transcript.length(conversation)

    def count(self, text: str) -> int:
        return self._form.count(text)

    async def close(self) -> None:
        """Tell the engine that this conversation sends no further requests."""
        with suppress(EngineError):
            await self._engine.close(self._conversation)


def _seed(seed: int, turn: int) -> int:
    """Return a seed that differs for each turn and is the same in every run."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{turn}".encode(), digest_size=4).digest()) >> 1
