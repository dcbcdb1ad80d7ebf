"""Adapters in the forward pass: nothing at the start, the merged matrices' values later, in every family and in the cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.learn.sharding import make_mesh, shardings
from slca.policy import cache, lora, transformer, weights
from slca.policy.config import LORA_TARGETS, Lora
from tests.policy.models import FAMILIES, params, row_logits

ROW = np.random.default_rng(5).integers(0, 61, 12)


def adapted_model(family, b=0.3, targets=tuple(LORA_TARGETS)):
    """(config, params) of rank 3: the family's parameters with adapters, B of spread `b`."""
    config = dataclasses.replace(FAMILIES[family], lora=Lora(3, 6.0, targets))
    fresh = lora.trainable(transformer.init(config, jax.random.key(1)))["blocks"]
    rng = np.random.default_rng(2)
    for name in fresh:
        if name.endswith(lora.B):
            assert not fresh[name].any()
            fresh[name] = jnp.asarray(b * rng.standard_normal(fresh[name].shape), jnp.float32)
    return config, lora.joined(params(family), {"blocks": fresh})


@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_adapters_change_no_bit(family):
    """Operation by operation (a compiler may fuse, and so round, the two programs differently), and in the merged matrices."""
    config, p = adapted_model(family, b=0.0)
    with jax.disable_jit():
        mine, base = (
            transformer.Transformer(c).apply({"params": w}, ROW[None], np.arange(12)[None])
            for c, w in ((config, p), (FAMILIES[family], params(family)))
        )
    np.testing.assert_array_equal(mine, base)
    jax.tree.map(np.testing.assert_array_equal, lora.merged(p, config)[0], params(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_equal_the_merged_matrices(family):
    """W + (alpha / r) A B written out with NumPy; far from the base; the same through the cache's layers."""
    config, p = adapted_model(family)
    blocks = {name: np.asarray(leaf, np.float64) for name, leaf in p["blocks"].items()}
    by_hand = dict(params(family)["blocks"])
    for name in LORA_TARGETS:
        a, b = blocks[name + "_lora_a"], blocks[name + "_lora_b"]
        flat = np.einsum("lir,lro->lio", a.reshape(2, -1, 3), b.reshape(2, 3, -1))
        by_hand[name] = (blocks[name] + 2.0 * flat.reshape(blocks[name].shape)).astype(np.float32)
    plain, model = lora.merged(p, config)
    assert model == FAMILIES[family]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), plain["blocks"], by_hand)
    expected = row_logits(model, params(family) | {"blocks": by_hand}, ROW)
    found = row_logits(config, p, ROW)
    np.testing.assert_allclose(found, expected, atol=5e-5)
    assert np.abs(found - row_logits(model, params(family), ROW)).max() > 0.1
    positions = jnp.arange(12)[None]
    layers = transformer.split_layers(p, config, fused=True)
    hidden, _ = transformer.forward_cached(
        p, layers, config, ROW[None], positions, positions, cache.init(config, 1, 16, "float32")
    )
    np.testing.assert_allclose(transformer.logits(hidden[0], transformer.unembed(p, config)), expected, atol=5e-5)


def test_some_targets_only():
    config, p = adapted_model("qwen2", targets=("q", "down"))
    assert set(lora.trainable(p)["blocks"]) == {"q_lora_a", "q_lora_b", "down_lora_a", "down_lora_b"}
    np.testing.assert_allclose(row_logits(config, p, ROW), row_logits(*reversed(lora.merged(p, config)), ROW), atol=5e-5)


def test_shapes_and_axes_follow_the_matrices():
    config, p = adapted_model("qwen3")
    assert jax.tree.map(lambda x: x.shape, p) == transformer.param_shapes(config)
    blocks, axes = transformer.param_shapes(config)["blocks"], transformer.logical_axes(config)["blocks"]
    assert (blocks["o_lora_a"], axes["o_lora_a"]) == ((2, 4, 8, 3), ("layers", "heads", None, None))
    assert (blocks["o_lora_b"], axes["o_lora_b"]) == ((2, 3, 32), ("layers", None, "embed"))
    assert (blocks["q_lora_b"], axes["q_lora_b"]) == ((2, 3, 4, 8), ("layers", None, "heads", None))


def test_a_tree_comes_apart_and_together():
    _, p = adapted_model("llama")
    base, adapters = lora.frozen(p), lora.trainable(p)
    assert jax.tree.structure(base) == jax.tree.structure(params("llama")) and len(jax.tree.leaves(adapters)) == 14
    jax.tree.map(np.testing.assert_array_equal, lora.joined(base, adapters), p)
    assert lora.trainable(base) is base  # full fine-tuning trains the whole tree
    toy = {"matrix": jnp.ones(2)}
    assert lora.trainable(toy) is toy


def test_the_checksum_sees_one_bit_and_no_mesh(config):
    base = params("qwen3")
    config.mesh.update(data=2, fsdp=2, tensor=2)
    placed = jax.device_put(base, shardings(base, transformer.logical_axes(FAMILIES["qwen3"]), make_mesh(config.mesh)))
    words = [np.asarray(leaf).view(np.uint32).astype(object).sum() for leaf in jax.tree.leaves(base)]
    assert int(lora.checksum(base)) == int(lora.checksum(placed)) == sum(words) % 2**32
    other = base | {"final_norm": base["final_norm"].at[3].set(jnp.nextafter(base["final_norm"][3], 9.0))}
    assert int(lora.checksum(other)) != int(lora.checksum(base))
    assert lora.checksum(jax.tree.map(lambda x: x.astype(jnp.bfloat16), base)).dtype == jnp.uint32


def test_what_is_refused(tmp_path, config):
    with pytest.raises(ValueError, match="adapter targets are among q, k, v"):
        adapted_model("qwen3", targets=("embed",))
    with pytest.raises(ValueError, match="merge them first"):
        weights.save(tmp_path, *adapted_model("qwen3"))
    from slca.validate import ConfigError, validate

    config.model.lora.update(rank=4, targets=("q", "embed"), alpha=0.0)
    with pytest.raises(ConfigError, match=r"(?s)model.lora.alpha=0.0.*model.lora.targets=\('q', 'embed'\)"):
        validate(config)
