"""Faults of vLLM that give wrong log-probs without an error: each is there without its mend, and is found."""

import asyncio
import dataclasses

import numpy as np
import pytest
from tests.contract.engine import ask, check, prompt_of, until_sampled
from tests.engine.vllm.networks import SHAPES, PublishedVersions
from tests.engine.vllm.shared import SLOTS, alone, shared_engine, start, vllm_or_skip

from etude.engine.probe import BOUNDS, compare
from etude.engine.protocol import EngineError, NumericsRefused
from etude.engine.vllm import service
from etude.weights import CHUNK_BYTES

pytestmark = pytest.mark.slow


def test_log_probs_before_temperature_are_refused_at_the_start(tmp_path, monkeypatch):
    vllm_or_skip()
    settings_of = service.settings_of

    def raw(*arguments, **options):
        found = settings_of(*arguments, **options)
        return dataclasses.replace(found, arguments=found.arguments | {"logprobs_mode": "raw_logprobs"})

    monkeypatch.setattr(service, "settings_of", raw)
    with alone(), pytest.raises(NumericsRefused, match="at its start"):
        start(PublishedVersions(tmp_path / "run", SHAPES["qwen3"]))


def test_a_wrong_rotation_is_refused_at_the_start(tmp_path, monkeypatch):
    vllm_or_skip()
    monkeypatch.setenv("ETUDE_VLLM_WITHOUT", "rope_of_latent_attention")
    with alone(), pytest.raises(NumericsRefused, match="at its start"):
        start(PublishedVersions(tmp_path / "run", SHAPES["deepseek_v3"]))


@pytest.fixture(scope="module")
def unmended(request, tmp_path_factory):
    family, without = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ETUDE_VLLM_WITHOUT", without)
        yield from shared_engine(tmp_path_factory.mktemp("unmended") / "run", family)


TIED = ("qwen3", "tied_head,partial_module")
EXPERTS = ("qwen3_moe", "packed_experts")


@pytest.mark.parametrize("unmended", [TIED, EXPERTS], indirect=True, ids=["head", "experts"])
def test_a_version_with_other_log_probs_is_refused_until_one_passes(unmended):
    engine, case = unmended.service, unmended.case()

    async def run() -> None:
        requests = [ask(f"r{i}", prompt_of(4 + i % 9, i), 80, seed=i) for i in range(20 * SLOTS)]
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        await until_sampled(engine, (await engine.stats()).sampled_tokens + 1)
        version = unmended.versions.publish()
        for _ in range(2):
            with pytest.raises(NumericsRefused, match=r"log-probs differ from the trainer's by mean"):
                await engine.update(version)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, EngineError)]
        assert failed
        assert all("log-probs differ" in str(error) for error in failed)
        whole = [answer for answer in answers if not isinstance(answer, EngineError)]
        before = set().union(*(answer.versions.tolist() for answer in whole))
        assert version not in before, "a token of the refused version left"
        with pytest.raises(NumericsRefused, match="log-probs differ"):
            await engine.generate(ask("new", prompt_of(4)))
        if unmended.versions.shape["tie_word_embeddings"]:  # the head still has the first weights
            await engine.update(unmended.versions.publish_first_again())
            request = ask("again", prompt_of(4))
            check(case, request, await engine.generate(request))

    asyncio.run(run())


@pytest.mark.parametrize("unmended", [TIED], indirect=True, ids=["head"])
def test_a_layer_that_is_sent_in_part_is_garbage_without_an_error(unmended):
    engine = unmended.service

    async def run() -> None:
        target = engine._read(unmended.versions.publish())
        (layer,) = [
            [row for row in group if "self_attn.k_proj" not in row["name"]]
            for group in target.replica.groups({})
            if ".layers.1." in group[0]["name"]
        ]
        await engine._child.call("update", target.number, target.replica.path, [layer], CHUNK_BYTES)
        found = np.stack(await engine._child.call("probe", list(engine._probe)))
        assert BOUNDS["float32"].refusal(compare(engine._current.reference.logprobs(engine._probe), found))

    asyncio.run(run())
