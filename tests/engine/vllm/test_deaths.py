"""vLLM's processes killed at work: requests are answered as if nothing had happened, and no process is left."""

import asyncio
import signal
import time

import numpy as np
import psutil
import pytest
from tests.contract.engine import CacheAtSwapContract, ask, check, prompt_of, until_sampled
from tests.engine.vllm.shared import SLOTS, shared_engine

from etude.engine.protocol import UpdateRefused
from etude.engine.vllm.replica import Replica

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    # Another policy than that of test_contract.py, so that it is tested without one more start.
    yield from shared_engine(tmp_path_factory.mktemp("deaths") / "run", "qwen3", cache_at_swap="salt")


class TestCacheUnderSalt(CacheAtSwapContract):
    @pytest.fixture
    def case(self, shared):
        return shared.case()


def processes(service) -> list[psutil.Process]:
    front = psutil.Process(service._child.pid)
    return [front, *front.children(recursive=True)]


def kill(service, name: str) -> list[psutil.Process]:
    """Kill the process whose title has this name. Return all that there were."""
    found = processes(service)
    (victim,) = [one for one in found if name in " ".join(one.cmdline())]
    victim.send_signal(signal.SIGKILL)
    return found


def require_gone(found: list[psutil.Process]) -> None:
    until = time.monotonic() + 30
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in found):
        assert time.monotonic() < until, found
        time.sleep(0.05)


def test_a_worker_killed_while_it_decodes(shared):
    requests = [ask(f"r{i}", prompt_of(5 + i, i), 80, seed=i) for i in range(2 * SLOTS)]
    case, service = shared.case(), shared.service

    async def run() -> None:
        plain = await asyncio.gather(*map(service.generate, requests))
        tasks = [asyncio.create_task(service.generate(request)) for request in requests]
        await until_sampled(service, (await service.stats()).sampled_tokens + SLOTS)
        old = kill(service, "VLLM::Worker")
        for request, before, task in zip(requests, plain, tasks, strict=True):
            answer = await task
            check(case, request, answer)
            np.testing.assert_array_equal(answer.tokens, before.tokens)
        require_gone(old)

    asyncio.run(run())


def test_the_engine_killed_during_an_update(shared):
    case, service = shared.case(), shared.service

    async def run() -> None:
        requests = [ask(f"u{i}", prompt_of(4 + i % 9, i), 80, seed=i) for i in range(20 * SLOTS)]
        tasks = [asyncio.create_task(service.generate(request)) for request in requests]
        await until_sampled(service, (await service.stats()).sampled_tokens + SLOTS)
        version = shared.versions.publish()
        updating = asyncio.create_task(service.update(version))
        await asyncio.sleep(0.05)
        old = kill(service, "VLLM::EngineCore")
        await updating
        assert (await service.info()).version == version
        answers = await asyncio.gather(*tasks)
        after = [pair for pair in zip(requests, answers, strict=True) if set(pair[1].versions.tolist()) == {version}]
        assert after
        for request, answer in after:
            check(case, request, answer)
        require_gone(old)

    asyncio.run(run())


def test_a_layer_that_is_sent_in_part_is_refused_and_the_old_version_goes_on(shared, monkeypatch):
    case, service = shared.case(), shared.service
    groups = Replica.groups

    def without_k(self, loaded):
        return [[row for row in group if "k_proj" not in row["name"]] for group in groups(self, loaded)]

    async def run() -> None:
        before = service._current.number
        with monkeypatch.context() as patch:
            patch.setattr(Replica, "groups", without_k)
            # The replacement of the process loads the version before, complete.
            patch.setattr(service, "_restart", restart_with(groups, patch, service._restart))
            with pytest.raises(UpdateRefused, match=r"was sent \d+ of its \d+ elements"):
                await service.update(shared.versions.publish())
        request = ask("still", prompt_of(7))
        answer = await service.generate(request)
        assert set(answer.versions.tolist()) == {before}
        check(case, request, answer)

    asyncio.run(run())


def restart_with(groups, patch, restart):
    async def run(*arguments):
        patch.setattr(Replica, "groups", groups)
        await restart(*arguments)

    return run
