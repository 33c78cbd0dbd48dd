"""A policy for base models: the engine continues the user's text, without a chat format."""

from __future__ import annotations

import numpy as np

from etude.bench.plain_text import EncodingTokenizer, prompt_ids
from etude.engine.protocol import ContextExceeded, Engine, EngineError, GenerateRequest, Sampling
from etude.harness import ContextFull, Conversation, PolicyError, Turn


class PlainPolicy:
    """Continues the last message as plain text, greedily. A turn ends with the token that ends a document."""

    def __init__(self, engine: Engine, tokenizer: EncodingTokenizer, context: int, end: int | None, name: str) -> None:
        self.name = name
        self._engine, self._tokenizer, self._context, self._end = engine, tokenizer, context, end

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        prompt = prompt_ids(self._tokenizer, conversation.messages[-1].text)
        room = self._context - len(prompt)
        if room < 1:
            raise ContextFull(f"the prompt has {len(prompt)} tokens, the context holds {self._context}")
        stop = () if self._end is None else (self._end,)
        sampling = Sampling(max_tokens=min(max_tokens, room), stop=stop, temperature=0.0)
        try:
            made = await self._engine.generate(
                GenerateRequest(conversation.id, np.array(prompt, np.int32), sampling, conversation.id)
            )
        except ContextExceeded as error:
            raise ContextFull(str(error)) from error
        except EngineError as error:
            raise PolicyError(f"{type(error).__name__}: {error}") from error
        ended = self._end is not None and int(made.tokens[-1]) == self._end
        return Turn(self._tokenizer.text(made.tokens), sampled_tokens=len(made.tokens), cut_off=not ended)

    def tokens(self, conversation: Conversation) -> int:
        return sum(self.count(message.text) for message in conversation.messages)

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text))
