"""Parity with transformers, packing, causality, precision. Numbers like P7 name cases that others got wrong."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.learn.sharding import make_mesh, shardings
from slca.policy import attention, cache, splash, transformer, weights
from tests.golden import recipe
from tests.policy.models import FAMILIES, logits, params, row_logits

IMPLEMENTATIONS = ("xla", "blockwise")
ROW = np.random.default_rng(3).integers(0, 61, 21)


@pytest.fixture(scope="module")
def golden_model(tmp_path_factory):
    @functools.cache
    def get(name):
        shapes, expected, greedy = recipe.golden(name)
        folder = recipe.write_folder(tmp_path_factory.mktemp(name) / "model", name, shapes)
        return *weights.load(folder), expected, greedy

    return get


@pytest.mark.parametrize("name", recipe.CONFIGS)
def test_logits_are_those_of_transformers(golden_model, name):
    """W1, W7: every family, llama3 scaling beyond its original context, windows shorter than the row."""
    config, weights_, expected, _ = golden_model(name)
    rows = recipe.tokens()
    positions = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    np.testing.assert_allclose(logits(config, weights_, rows, positions), expected, atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_packed_rows_equal_plain_rows(family, how):
    """P10, P11: three episodes and padding in one row; positions restart, nothing is seen across a border."""
    config = dataclasses.replace(FAMILIES[family], attention=how)
    lengths, pad = (6, 10, 5), 3
    tokens = jnp.asarray(np.concatenate([ROW, np.zeros(pad, int)]))[None]
    positions = jnp.asarray(np.concatenate([*(np.arange(n) for n in lengths), np.zeros(pad, int)]))[None]
    episode = jnp.asarray(np.repeat([1, 2, 3, 0], [*lengths, pad]))[None]
    packed = logits(config, params(family), tokens, positions, episode)[0]
    start = 0
    for length in lengths:
        alone = row_logits(FAMILIES[family], params(family), ROW[start : start + length])
        np.testing.assert_allclose(packed[start : start + length], alone, atol=2e-5)
        start += length


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_later_tokens_change_nothing_before_them(how):
    """P5, P10: causality by gradient; padding behind a row and its batch mates change no logit."""
    config = dataclasses.replace(FAMILIES["gemma3"], attention=how)
    weights_ = params("gemma3")
    positions = jnp.arange(21)[None]

    @jax.jit
    def influence(embed):  # gradient of the logits at token 9 with respect to the embedding of each id
        return jax.grad(lambda e: logits(config, weights_ | {"embed": e}, jnp.arange(21)[None], positions)[0, 9, 60])(embed)

    moved = np.abs(influence(weights_["embed"])).sum(-1)
    assert (moved[:10] > 0).all() and (moved[10:21] == 0).all()
    rows = jnp.asarray(np.stack([np.concatenate([ROW, np.zeros(11, int)]), np.full(32, 7)]))
    batched = logits(config, weights_, rows, jnp.broadcast_to(jnp.arange(32)[None], (2, 32)))
    np.testing.assert_allclose(batched[0, :21], row_logits(config, weights_, ROW), atol=1e-5)


@functools.partial(jax.jit, static_argnums=(0, 1))
def extend(config, fused, p, tokens, positions, slots, kv_cache):
    layers = transformer.split_layers(p, config, fused)
    return transformer.forward_cached(p, layers, config, tokens, positions, slots, kv_cache)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_prefill_and_decode_equal_one_forward(family, how):
    """P9, contract 12: a prefilled prompt, a chunk appended at per-row lengths, single tokens; bit layout of the cache; both
    forms of the layers."""
    fused = how == "xla"
    config = dataclasses.replace(FAMILIES[family], attention=how)
    p, full = params(family), row_logits(FAMILIES[family], params(family), ROW)
    lengths = np.array([8, 5])  # row 1 is three tokens behind
    tokens = jnp.asarray(np.stack([ROW[:8], np.concatenate([ROW[:5], [0] * 3])]))
    prefill = jax.jit(
        lambda t: transformer.Transformer(config).apply({"params": p}, t, jnp.tile(jnp.arange(8)[None], (2, 1)), keep_kv=True)
    )
    hidden, kv = prefill(tokens)
    head = transformer.unembed(p, config)
    np.testing.assert_allclose(transformer.logits(hidden[0], head), full[:8], atol=1e-5)
    store = cache.from_prefill(*kv, "float32")
    kv_cache = jax.tree.map(
        lambda big, small: big.at[tuple(slice(n) for n in small.shape)].set(small), cache.init(config, 2, 24, "float32"), store
    )
    for size in (6, 1, 1):
        positions = lengths[:, None] + np.arange(size)[None]
        hidden, kv_cache = extend(
            FAMILIES[family], fused, p, jnp.asarray(ROW[positions]), jnp.asarray(positions), jnp.asarray(positions), kv_cache
        )
        for row in (0, 1):
            np.testing.assert_allclose(transformer.logits(hidden[row], head), full[positions[row]], atol=2e-5)
        lengths = lengths + size


@pytest.fixture
def splash_here(monkeypatch):
    """The TPU's kernel, interpreted."""
    monkeypatch.setattr(splash, "attend", functools.partial(splash.attend, interpret=True))
    monkeypatch.setattr(attention, "refusal", lambda *facts: "")


LONG = np.random.default_rng(4).integers(0, 61, 128)  # a block of the kernel


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
def test_splash_packs_as_plain_rows_with_their_gradient(splash_here, family):
    """P10, P11 in interpret mode: three episodes and padding; logits and the gradient of every parameter are those of `xla`, and
    the logits those of each episode alone."""
    lengths, pad = (40, 65, 9), 14
    positions = jnp.asarray(np.concatenate([*(np.arange(n) for n in lengths), np.zeros(pad, int)]))[None]
    episode = jnp.asarray(np.repeat([1, 2, 3, 0], [*lengths, pad]))[None]
    weight = jnp.asarray(
        np.random.default_rng(1).standard_normal((1, 128, 1)) * (np.asarray(episode) > 0)[..., None], jnp.float32
    )

    def packed(how):
        config = dataclasses.replace(FAMILIES[family], attention=how)

        def objective(p):
            found = logits(config, p, jnp.asarray(LONG)[None], positions, episode)
            return jnp.sum(weight * jax.nn.log_softmax(found)[..., 7:8]), found

        return jax.value_and_grad(objective, has_aux=True)(params(family))

    (_, found), gradient = packed("splash")
    (_, expected), slow = packed("xla")
    np.testing.assert_allclose(found, expected, atol=2e-5)
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(slow))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), gradient, slow)
    start = 0
    for length in lengths:
        alone = row_logits(FAMILIES[family], params(family), LONG[start : start + length])
        np.testing.assert_allclose(found[0, start : start + length], alone, atol=2e-5)
        start += length


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_by_splash_and_decode_equal_one_forward(splash_here, family):
    """P9, contract 12 in interpret mode: prompts of 100 and 61 tokens in a bucket of 128, then a chunk and single tokens."""
    config, p = dataclasses.replace(FAMILIES[family], attention="splash"), params(family)
    full = row_logits(FAMILIES[family], p, LONG)
    np.testing.assert_allclose(row_logits(config, p, LONG), full, atol=2e-5)
    lengths = np.array([100, 61])
    tokens = jnp.asarray(np.where(np.arange(128)[None] < lengths[:, None], LONG[None], 0))
    positions = jnp.broadcast_to(jnp.arange(128)[None], (2, 128))
    hidden, kv = jax.jit(lambda t: transformer.Transformer(config).apply({"params": p}, t, positions, keep_kv=True))(tokens)
    head = transformer.unembed(p, config)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(transformer.logits(hidden[row, :length], head), full[:length], atol=2e-5)
    kv_cache = cache.from_prefill(*kv, "float32")
    for size in (6, 1, 1):
        positions = lengths[:, None] + np.arange(size)[None]
        at = jnp.asarray(positions)
        hidden, kv_cache = extend(FAMILIES[family], True, p, jnp.asarray(LONG[positions]), at, at, kv_cache)
        for row in (0, 1):
            np.testing.assert_allclose(transformer.logits(hidden[row], head), full[positions[row]], atol=2e-5)
        lengths = lengths + size


def test_rope_angles_are_float32():
    """P7: position 8,191 against float64, and 257 must not become 256 in a bfloat16 model."""
    config = dataclasses.replace(FAMILIES["qwen3"], dtype="bfloat16", head_dim=64)
    positions = np.array([[256, 257, 8191]])
    cos, sin = transformer.rope_tables(config, jnp.asarray(positions))[0]
    assert cos.dtype == jnp.float32
    angles = positions[..., None] * 10_000.0 ** (-np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-3)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-3)


def test_llama3_frequencies_are_the_published_rule():
    """W1: Llama 3.1-8B (factor 8) and 3.2-1B (factor 32); the rule written out from the model card's code."""
    for factor, head_dim in ((8.0, 128), (32.0, 64)):
        config = dataclasses.replace(
            FAMILIES["llama"],
            rope_theta=5e5,
            head_dim=head_dim,
            rope_scaling=FAMILIES["llama"].rope_scaling._replace(factor=factor, original=8192),
        )
        expected = []
        for i in range(0, head_dim, 2):
            frequency = 5e5 ** (-i / head_dim)
            wavelength = 2 * np.pi / frequency
            if wavelength < 8192 / 4.0:
                expected.append(frequency)
            elif wavelength > 8192 / 1.0:
                expected.append(frequency / factor)
            else:
                smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
                expected.append((1 - smooth) * frequency / factor + smooth * frequency)
        np.testing.assert_allclose(transformer.inverse_frequencies(config)[0], expected, rtol=1e-6)


def test_remat_changes_no_gradient():
    def gradient(config):
        loss = lambda p: logits(config, p, jnp.asarray(ROW)[None], jnp.arange(21)[None]).std()  # noqa: E731
        return jax.jit(jax.grad(loss))(params("qwen3"))

    plain = gradient(FAMILIES["qwen3"])
    for remat in ("block", "dots"):
        again = gradient(dataclasses.replace(FAMILIES["qwen3"], remat=remat))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), plain, again)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_where_it_matters():
    config = dataclasses.replace(FAMILIES["qwen2"], dtype="bfloat16")
    hidden = jax.eval_shape(
        lambda p: transformer.Transformer(config).apply({"params": p}, ROW[None], np.arange(21)[None]), params("qwen2")
    )
    assert hidden.dtype == jnp.bfloat16 and transformer.unembed(params("qwen2"), config).dtype == jnp.bfloat16
    low, high = (row_logits(c, params("qwen2"), ROW) for c in (config, FAMILIES["qwen2"]))
    assert low.dtype == jnp.float32
    assert 0 < np.abs(low - high).max() < 0.25 and np.corrcoef(low.ravel(), high.ravel())[0, 1] > 0.999


@pytest.mark.parametrize("family", FAMILIES)
def test_params_match_their_shapes_and_axes(family):
    config = FAMILIES[family]
    tree = jax.eval_shape(functools.partial(transformer.init, config), jax.random.key(0))
    shapes = jax.tree.map(lambda x: x.shape, tree)
    assert shapes == transformer.param_shapes(config)
    made = jax.eval_shape(lambda: transformer.Transformer(config).init(jax.random.key(0), ROW[None], np.arange(21)[None]))
    assert jax.tree.map(lambda x: x.shape, made["params"]) == shapes
    axes = transformer.logical_axes(config)
    jax.tree.map(
        lambda shape, names: len(shape) == len(names) or pytest.fail(str(names)),
        shapes,
        axes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def test_init_keeps_the_scale_of_activations():
    """N(0, 1/fan_in), outputs into the residual stream smaller by sqrt(2 L); norms and biases neutral."""
    p = transformer.init(FAMILIES["qwen2"], jax.random.key(0))
    for name, fan_in in (("q", 32), ("gate", 32), ("o", 32 * 4), ("down", 48 * 4)):
        assert float(p["blocks"][name].std()) == pytest.approx(fan_in**-0.5, rel=0.05)
    assert (p["blocks"]["q_bias"] == 0).all() and (p["final_norm"] == 1).all()
    assert not np.array_equal(p["blocks"]["gate"], p["blocks"]["up"])
    assert (transformer.init(FAMILIES["gemma3"], jax.random.key(0))["blocks"]["mlp_post_norm"] == 0).all()


def test_sharded_params_give_the_same_logits(config):
    config.mesh.update(data=2, fsdp=2, tensor=2)
    mesh = make_mesh(config.mesh)
    for family in ("qwen2", "gemma3"):
        model = FAMILIES[family]
        placed = jax.device_put(params(family), shardings(params(family), transformer.logical_axes(model), mesh))
        rows = np.broadcast_to(ROW, (4, 21))
        got = logits(model, placed, rows, np.broadcast_to(np.arange(21), (4, 21)))
        np.testing.assert_allclose(got[2], row_logits(model, params(family), ROW), atol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_layers_for_decoding_hold_no_parameter(fused):
    """S9: the update donates the parameters; what decoding made of them is neither deleted nor changed by that."""
    config = FAMILIES["qwen2"]
    p = jax.tree.map(jnp.copy, params("qwen2"))
    layers = jax.jit(functools.partial(transformer.split_layers, config=config, fused=fused))(p)
    before = jax.device_get(layers)
    stepped = jax.jit(lambda p: jax.tree.map(lambda x: x + 1, p), donate_argnums=0)(p)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(p)) and jax.tree.leaves(stepped)
    jax.tree.map(np.testing.assert_array_equal, layers, before)


def test_parameters_in_the_compute_dtype_give_the_same_forward():
    config = dataclasses.replace(FAMILIES["qwen2"], dtype="bfloat16")
    weights, tokens = params("qwen2"), np.arange(12)[None] % 7
    small = transformer.computed(weights, config)
    assert small["blocks"]["gate"].dtype == small["embed"].dtype == jnp.bfloat16 and small["final_norm"].dtype == jnp.float32
    forward = lambda p: transformer.Transformer(config).apply({"params": p}, tokens, tokens)  # noqa: E731
    np.testing.assert_array_equal(forward(weights), forward(small))
    np.testing.assert_array_equal(transformer.unembed(weights, config), transformer.unembed(small, config))
