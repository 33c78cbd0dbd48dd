"""Answers questions from an engine: writes the prompt, samples, and reads the turn meanwhile. It knows neither HTTP nor
the protocols of clients."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import numpy as np

from etude.engine.protocol import (
    ContextExceeded,
    EngineError,
    GenerateRequest,
    Generation,
    Piece,
    Sampling,
    StopReason,
    StreamingEngine,
    StreamsLost,
)
from etude.engine.streams import Streams
from etude.serve.answer import Answer, CallMade, Delta, Event, Finish, Tokens
from etude.serve.question import Question, SaidCall
from etude.serve.refusal import Problem, Refused
from etude.serve.rendering import Rendering
from etude.serve.stop_texts import StopTexts
from etude.text.format import Format, TokenizerLike, TurnPiece, TurnReader
from etude.text.formats.streaming import PlainReader
from etude.text.tokenizer import Tokenizer

_LONG = 20_000
"""Characters above which a prompt is encoded on another thread, so that it does not hold up other answers."""
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Served:
    """A model, its format and the bounds of its answers."""

    form: Format
    tokenizer: Tokenizer | TokenizerLike
    vocab_size: int
    names: tuple[str, ...]
    """Names by which clients may ask for it; the first is in the list of models."""
    context: int
    max_tokens: int

    def require_known(self, ids: Sequence[int], field: str) -> None:
        """Raise Refused if one of the ids is not in the vocabulary."""
        if (largest := max(ids, default=0)) >= self.vocab_size:
            message = f"{field}: the id {largest} is not in the vocabulary of {self.vocab_size}"
            raise Refused(Problem.INVALID, message, field=field)


class Gateway:
    def __init__(self, engine: StreamingEngine, served: Served, *, every: float = 0.1) -> None:
        """`every` is the time between two pieces of an answer, but for the first: what the engine spends on 64 streams
        is in proportion to its inverse (benchmarks/serve.py)."""
        self.engine, self.served = engine, served
        self._streams = Streams(engine, every=every)

    async def close(self) -> None:
        """End all answers with an error."""
        await self._streams.close()

    async def prompt(self, question: Question, *, any_length: bool = False) -> list[int]:
        """Return the ids of a question's prompt. Raises Refused if it cannot be written, or fills the context and may
        not have `any_length`."""
        if question.model not in self.served.names:
            raise Refused(
                Problem.UNKNOWN_MODEL,
                f"the model {question.model!r} is not served here; there is {', '.join(self.served.names)}",
                field="model",
            )
        size = sum(len(said.text) for said in question.said)
        size += len(question.prompt) if isinstance(question.prompt, str) else 0
        ids = await asyncio.to_thread(self._ids, question) if size > _LONG else self._ids(question)
        if len(ids) >= self.served.context and not any_length:
            raise Refused(
                Problem.CONTEXT,
                f"the prompt is too long: {len(ids)} tokens, the maximum context length is {self.served.context} "
                "tokens for prompt and answer together",
            )
        return ids

    def _ids(self, question: Question) -> list[int]:
        if question.prompt is None:
            return Rendering(self.served.form, question.functions).prompt(question.said)
        if not isinstance(question.prompt, str):
            return list(question.prompt)
        return self.served.tokenizer.encode(question.prompt)

    async def answer(self, question: Question, prompt: list[int]) -> AsyncGenerator[Event, None]:
        """Sample an answer to the prompt of this question. Yield its events; the last is the Answer. A caller that
        leaves early must close the iterator, which ends the sampling. Raises Refused if the engine fails."""
        wanted = question.wanted
        room = self.served.context - len(prompt)
        stop = self.served.form.stop_ids if wanted.stop_ids is None else wanted.stop_ids
        sampling = Sampling(
            max_tokens=max(1, min(room, self.served.max_tokens, wanted.max_tokens or room)),
            stop=stop,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            seed=secrets.randbits(31) if wanted.seed is None else wanted.seed & 0x7FFFFFFF,
        )
        reading = _Reading(self.served, question, prompt)
        for attempt in range(_ATTEMPTS):
            request = GenerateRequest(secrets.token_hex(12), np.array(prompt, np.int32), sampling)
            try:
                stream = cast(AsyncGenerator[Piece | Generation, None], self._streams.stream(request))
                async with aclosing(stream) as news:
                    async for item in news:
                        for event in reading.take(item):
                            yield event
                        if reading.ended:
                            return
            except ContextExceeded as error:
                raise Refused(Problem.CONTEXT, f"the prompt is too long: {error}") from error
            except StreamsLost as error:
                if reading.begun or attempt == _ATTEMPTS - 1:
                    raise Refused(Problem.ENGINE, f"the engine was lost: {error}") from error
            except EngineError as error:
                raise Refused(Problem.ENGINE, f"the engine failed: {error}") from error


class _Reading:
    """What was read of one answer."""

    def __init__(self, served: Served, question: Question, prompt: list[int]) -> None:
        self._form = form = served.form
        self._chat = question.prompt is None
        self._rendering = Rendering(form, question.functions)
        stop = form.stop_ids if question.wanted.stop_ids is None else question.wanted.stop_ids
        plain = PlainReader(stop, served.tokenizer.decode)
        self._reader: TurnReader = form.reader() if self._chat else plain
        self._stops = StopTexts(question.wanted.stop)
        self._prompt = prompt
        self._read = 0
        """Number of tokens that were read."""
        self._label = secrets.token_hex(8)
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[SaidCall] = []
        self._new: tuple[list[int], list[float]] = ([], [])
        self._kept: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]] = ([], [], [])
        self.ended = False

    @property
    def begun(self) -> bool:
        return self._read > 0

    def take(self, item: Piece | Generation) -> Iterator[Event]:
        new = slice(self._read, None) if isinstance(item, Generation) else slice(None)
        tokens, logprobs, versions = item.tokens[new], item.logprobs[new], item.versions[new]
        self._read += len(tokens)
        for kept, more in zip(self._kept, (tokens, logprobs, versions), strict=True):
            kept.append(more)
        self._new[0].extend(tokens.tolist())
        self._new[1].extend(logprobs.tolist())
        last = isinstance(item, Generation)
        pieces = self._reader.feed(tokens.tolist())
        for piece in [*pieces, *(self._reader.end() if last else ())]:
            yield from self._of_piece(piece)
            if self._stops.found is not None:
                break
        else:
            if last:
                yield from self._say("text", self._stops.end())
        if last or self._stops.found is not None:
            self.ended = True
            yield self._answer(item)

    def _of_piece(self, piece: TurnPiece) -> Iterator[Event]:
        call = None
        if piece.kind == "call":
            name = f"call_{self._label}_{len(self._calls)}"
            call = self._rendering.call(piece.text, piece.complete, name)
        if piece.kind == "thinking":
            yield from self._say("thinking", piece.text)
        elif call is None:
            yield from self._say("text", self._stops.feed(piece.text))
        else:
            yield from self._say("text", self._stops.end())
            self._calls.append(call)
            yield CallMade(call, self._tokens())

    def _say(self, kind: str, text: str) -> Iterator[Event]:
        if text:
            (self._thinking if kind == "thinking" else self._text).append(text)
            yield Delta("thinking" if kind == "thinking" else "text", text, self._tokens())

    def _tokens(self) -> Tokens:
        tokens = Tokens(*self._new)
        self._new = ([], [])
        return tokens

    def _answer(self, item: Piece | Generation) -> Answer:
        tokens, logprobs, versions = (np.concatenate(kept) for kept in self._kept)
        stopped = self._stops.found
        cut = isinstance(item, Generation) and item.stop is not StopReason.STOP
        finish = Finish.LENGTH if cut and stopped is None else Finish.CALLS if self._calls else Finish.STOP
        thinking = self._form.parse(tokens.tolist()).thinking_tokens if self._chat else 0
        usage = item.usage if isinstance(item, Generation) else None
        return Answer(
            text="".join(self._text),
            thinking="".join(self._thinking),
            calls=tuple(self._calls),
            finish=Finish.STOP if stopped is not None else finish,
            stopped_by=stopped,
            prompt=np.array(self._prompt, np.int32),
            tokens=tokens,
            logprobs=logprobs,
            versions=versions,
            thinking_tokens=thinking,
            cached_tokens=usage.cached_tokens if usage else 0,
            rest=self._tokens(),
        )
