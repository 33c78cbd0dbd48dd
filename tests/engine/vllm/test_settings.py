import json

import pytest
from tests.engine.vllm.networks import GROUPED, SHAPES

from etude.engine.protocol import EngineError
from etude.engine.vllm.known import FAULTS, TESTED, refusal
from etude.engine.vllm.settings import settings_of
from etude.recipe.acting import EngineRecipe
from etude.recipe.lora import LoraRecipe
from etude.recipe.precision import PrecisionRecipe

LATENT = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "kv_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 61,
}


@pytest.fixture
def settings(tmp_path):
    def of(config, dtype="float32", recipe=None, **options):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return settings_of(tmp_path, recipe or EngineRecipe(), dtype, **options)

    return of


@pytest.mark.parametrize(
    ("config", "options", "named"),
    [
        (LATENT, {}, "kv_lora_rank 512 and qk_rope_head_dim 64"),
        (SHAPES["qwen3"], {"lockstep": True}, "rl.mode"),
        (SHAPES["qwen3"], {"lora": LoraRecipe(rank=4)}, "lora.rank"),
        (SHAPES["qwen3"], {"precision": PrecisionRecipe(invariant=True)}, "precision"),
        (SHAPES["qwen3"], {"device": "cuda"}, "compute.device"),
        (SHAPES["qwen3"], {"dtype": "float16"}, "float16"),
        (SHAPES["qwen3"], {"recipe": EngineRecipe(speculate="always")}, "engine.speculate"),
        (SHAPES["qwen3"] | {"etude": {"embedding_scale": 2.0}}, {}, "model.embedding_scale"),
        (GROUPED | {"model_type": "glm4_moe"}, {}, "glm4_moe"),
        (GROUPED | {"model_type": "qwen3"}, {}, "architectures"),
    ],
)
def test_what_vllm_would_compute_otherwise_is_refused_by_name(settings, config, options, named):
    with pytest.raises(EngineError, match=named):
        settings(config, **options)


def test_no_prompt_is_split_and_the_cache_holds_all_sequences(settings):
    recipe = EngineRecipe(slots=100, context=8192, cache_slots=28)
    arguments = settings(SHAPES["qwen3"], "bfloat16", recipe).arguments
    assert arguments["max_num_batched_tokens"] >= arguments["max_model_len"] == 8192
    assert not arguments["enable_chunked_prefill"]
    entry = 3 * 2 * 2 * 32 * 2  # layers, keys and values, groups, width, bytes
    assert arguments["kv_cache_memory_bytes"] >= 128 * 8192 * entry


def test_another_version_is_refused_by_name_unless_allowed():
    assert refusal(TESTED[0]) is None
    assert "0.31.7" in refusal("0.31.7")
    assert refusal("0.31.7", any_version=True) is None
    assert all(version in TESTED for fault in FAULTS for version in fault.versions)
