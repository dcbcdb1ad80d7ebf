import dataclasses

import pytest
import transformers

from slca.policy.config import ModelConfig, RopeScaling
from tests.golden import recipe
from tests.policy.models import FAMILIES

QWEN25_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_a_real_config_file_is_read():
    config = ModelConfig.from_hf(QWEN25_05B)
    assert (config.vocab, config.width, config.layers, config.ff) == (151936, 896, 24, 4864)
    assert (config.heads, config.kv_heads, config.head_dim) == (14, 2, 64)
    assert config.qkv_bias and not config.qk_norm and config.tied and not config.sliding_window
    assert config.rope_theta == 1e6 and config.rope_scaling is None and config.stop_ids == (151645,)


def test_llama3_scaling_in_both_spellings():
    new = recipe.CONFIGS["llama3"] | {"rope_parameters": recipe.CONFIGS["llama3"]["rope_scaling"] | {"rope_theta": 5e5}}
    del new["rope_scaling"], new["rope_theta"]
    expected = RopeScaling("llama3", 8.0, 1.0, 4.0, 32)
    for hf in (recipe.CONFIGS["llama3"], new):
        config = ModelConfig.from_hf(hf)
        assert (config.rope_theta, config.rope_scaling) == (5e5, expected)


def test_gemma_layers_alternate():
    hf = recipe.CONFIGS["gemma3"] | {"num_hidden_layers": 7, "sliding_window_pattern": 6}
    config = ModelConfig.from_hf(hf)
    assert config.global_layers == (False,) * 5 + (True, False)
    listed = hf | {"layer_types": ["full_attention", "sliding_attention"] * 3 + ["full_attention"]}
    assert ModelConfig.from_hf(listed).global_layers == (True, False, True, False, True, False, True)
    assert (config.rope_theta, config.local_rope_theta, config.sliding_window) == (1e6, 1e4, 7)
    assert config.scale == pytest.approx(24**-0.5) and config.tied


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral' is not supported"),
        ({"model_type": "gemma3"}, "gemma3_text"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"max_position_embeddings": None}, "'max_position_embeddings' is missing"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "lacks high_freq_factor, low_freq_factor"),
        ({"num_key_value_heads": 3}, "not a multiple of kv_heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types holds 'sliding_attention'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "no RoPE scaling has the numbers .*factor=0.0"),
        (
            {"rope_scaling": recipe.CONFIGS["llama3"]["rope_scaling"] | {"high_freq_factor": 1.0}},
            "no RoPE scaling has the numbers .*high=1.0",
        ),
        ({"vocab_size": 151936.0}, "vocab must be positive and whole, is 151936.0"),
        ({"num_key_value_heads": 0}, "kv_heads must be positive and whole, is 0"),
        ({"num_hidden_layers": 10**7}, "layers must be at most 1000"),
        ({"rms_norm_eps": float("nan")}, "norm_eps must be a number above 0, is nan"),
        ({"rope_theta": "1e6"}, "rope_theta must be a number above 0, is '1e6'"),
        ({"tie_word_embeddings": "no"}, "tied must be true or false, is 'no'"),
        ({"eos_token_id": "</s>"}, "stop_ids must be whole numbers, are"),
    ],
)
def test_what_cannot_be_computed_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf(QWEN25_05B | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 0}, "sliding layers need a window, sliding_window is 0"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types holds 'chunked_attention'"),
    ],
)
def test_layers_of_gemma_that_cannot_be_computed(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf(recipe.CONFIGS["gemma3"] | change)


def test_null_is_the_default_of_the_family():
    for name, tied in (("gemma3", True), ("qwen3", False)):
        assert ModelConfig.from_hf(recipe.CONFIGS[name] | {"tie_word_embeddings": None}).tied is tied


def test_head_dim_must_be_stated_where_it_is_free():
    hf = {key: value for key, value in recipe.CONFIGS["qwen3"].items() if key != "head_dim"}
    with pytest.raises(ValueError, match="'head_dim' is missing"):
        ModelConfig.from_hf(hf)


@pytest.mark.parametrize("family", FAMILIES)
def test_to_hf_and_back(family):
    config = dataclasses.replace(FAMILIES[family], stop_ids=(3, 5))
    back = ModelConfig.from_hf(config.to_hf())
    assert back == dataclasses.replace(config, query_scale=pytest.approx(config.scale) if config.gemma else 0.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_our_config_the_same_way(family):
    hf = transformers.AutoConfig.for_model(**FAMILIES[family].to_hf())
    assert ModelConfig.from_hf(hf.to_dict() | {"model_type": hf.model_type}).to_hf() == FAMILIES[family].to_hf() | {
        key: hf.to_dict()[key] for key in ("eos_token_id",) if hf.to_dict().get(key) is not None
    }


def test_random_takes_the_model_section(config):
    config.model.update(family="gemma3", dtype="bfloat16", remat="dots", attention="blockwise", vocab=0)
    made = ModelConfig.random(config.model, vocab=1000)
    assert (made.family, made.vocab, made.dtype, made.remat, made.attention) == (
        "gemma3_text",
        1000,
        "bfloat16",
        "dots",
        "blockwise",
    )
    assert made.sliding_window == 512 and made.global_layers == (False,) * 4
    config.model.update(family="llama", vocab=77)
    assert ModelConfig.random(config.model, vocab=1000).vocab == 77


def test_run_as_changes_only_how_to_compute(config):
    config.model.update(dtype="bfloat16", remat="none")
    assert FAMILIES["qwen3"].run_as(config.model) == dataclasses.replace(FAMILIES["qwen3"], dtype="bfloat16")
    config.model.attention = "flash"
    with pytest.raises(ValueError, match="attention 'flash' is not one of"):
        FAMILIES["qwen3"].run_as(config.model)
