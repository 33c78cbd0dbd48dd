"""The contract suite on vLLM, in fp32, so that its log-probs can be compared as closely as those of our own engine."""

import pytest
from tests.contract.engine import CacheAtSwapContract, EngineContract
from tests.engine.vllm.networks import SHAPES
from tests.engine.vllm.shared import shared_engine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(request, tmp_path_factory):
    yield from shared_engine(tmp_path_factory.mktemp(request.param) / "run", request.param)


@pytest.fixture
def case(shared):
    return shared.case()


@pytest.mark.parametrize("shared", SHAPES, indirect=True, scope="module")
class TestVllm(EngineContract):
    pass


# Under latent attention there is no prefix cache.
@pytest.mark.parametrize("shared", ["qwen3", "qwen3_moe"], indirect=True, scope="module")
class TestCacheOfVllm(CacheAtSwapContract):
    pass
