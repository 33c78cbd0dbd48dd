"""A tiny random network behind the server: what clients get is what the engine sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from tests.engine.tiny import tiny_model
from tests.serve.running import NAME, Running, running
from tests.text.formats.tiny import merged, merged_file

from etude.engine.open import open_engine
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.model import save_hf
from etude.recipe.acting import EngineRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.serve.gateway import Served
from etude.text.opening import open_format

SLOTS, CONTEXT = 2, 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    save_hf(tiny_model(vocab_size=merged().vocab_size), place)
    (place / "tokenizer.json").write_text(json.dumps(merged_file()))
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    async def make() -> tuple[Any, Served]:
        recipe = EngineRecipe(slots=SLOTS, cache_slots=SLOTS, context=CONTEXT, threads=1)
        precision = PrecisionRecipe(invariant=False)
        engine = open_engine(folder, recipe, dtype="float32", threads=1, precision=precision)
        _, form, tokenizer = open_format(folder)
        return engine, Served(form, tokenizer, tokenizer.vocab_size, (NAME,), CONTEXT, CONTEXT)

    with running(make) as found:
        yield found


def test_answers_at_the_same_time_are_those_of_the_engine(server: Running, folder: Path) -> None:
    """Streamed and whole, more of them than slots: ids, log-probs and text are what `generate` gives for the same
    prompt and seed."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    _, form, _ = open_format(folder)

    def ask(number: int) -> tuple[dict[str, Any], str, str]:
        asked: Any = {
            "model": NAME,
            "messages": [
                {"role": "system", "content": "You mend code."},
                {"role": "user", "content": f"file {number}"},
            ],
            "seed": number,
            "max_tokens": 8,
            "extra_body": {"return_token_ids": True},
        }
        if number % 2:
            answer = client.chat.completions.create(**asked)
            message = answer.choices[0].message
            thinking = getattr(message, "reasoning_content", None) or ""
            return answer.etude, message.content or "", thinking  # type: ignore[attr-defined]
        exact, text, thinking = {}, "", ""
        for chunk in client.chat.completions.create(**asked, stream=True):
            exact = getattr(chunk, "etude", exact)
            text += chunk.choices[0].delta.content or ""
            thinking += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        return exact, text, thinking

    async def generate(number: int, prompt: list[int]) -> Generation:
        sampling = Sampling(8, form.stop_ids, seed=number)
        request = GenerateRequest(f"again {number}", np.array(prompt, np.int32), sampling)
        answer: Generation = await server.engine.generate(request)
        return answer

    with ThreadPoolExecutor(3 * SLOTS) as pool:
        answers = list(pool.map(ask, range(3 * SLOTS)))
    for number, (exact, text, thinking) in enumerate(answers):
        prompt = form.opening("You mend code.", f"file {number}")
        assert exact["prompt_token_ids"] == prompt
        expected = server.inside(generate(number, prompt))
        assert exact["token_ids"] == expected.tokens.tolist()
        np.testing.assert_allclose(exact["logprobs"], expected.logprobs, atol=1e-5)
        turn = form.parse(exact["token_ids"])
        assert thinking == turn.thinking
        assert text == turn.text + "".join(call.raw for call in turn.calls)
    assert len({tuple(exact["token_ids"]) for exact, _, _ in answers}) > SLOTS


def test_who_leaves_frees_the_slot(server: Running) -> None:
    """A client that closes its connection in the middle of an answer ends the sampling."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    async def stats() -> Any:
        return await server.engine.stats()

    async def until_idle() -> None:
        async with asyncio.timeout(20):
            await server.app.admission.idle()
            while (await server.engine.stats()).running:
                pass  # each `await` of stats lets the engine take a step

    before = server.inside(stats()).sampled_tokens
    for number in range(2 * SLOTS):
        asked: Any = {"model": NAME, "messages": [{"role": "user", "content": f"{number}"}], "stream": True}
        stream = client.chat.completions.create(**asked, max_tokens=110, stop=["never said"])
        next(iter(stream))
        stream.close()
    server.inside(until_idle())
    assert server.inside(stats()).sampled_tokens - before < 2 * SLOTS * 100
    assert server.call(lambda: server.app.admission.in_flight) == 0
