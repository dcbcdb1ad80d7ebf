import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.policy import attention, splash
from slca.policy.attention import cached_attention

B, T, H, K, D = 2, 24, 4, 2, 8
EPISODE = np.array([[1] * 7 + [2] * 10 + [3] * 3 + [0] * 4, [1] * 24])


def arrays():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((B, T, n, D)).astype(np.float32) for n in (H, K, K)]


def slow(q, k, v, episode=None, window=None):
    """One query at a time, float64."""
    out = np.zeros((B, T, H, D))
    for b in range(B):
        for t in range(T):
            for h in range(H):
                seen = [s for s in range(t + 1) if window is None or t - s < window]
                seen = [s for s in seen if episode is None or episode[b, s] == episode[b, t]]
                scores = np.array([np.float64(q[b, t, h]) @ k[b, s, h // (H // K)] * 0.4 for s in seen])
                weights = np.exp(scores - scores.max())
                out[b, t, h] = (weights / weights.sum()) @ np.array([v[b, s, h // (H // K)] for s in seen])
    return out


def run(implementation, q, k, v, episode=None, window=None):
    window = None if window is None else (window, jnp.int32(1))
    episode = None if episode is None else jnp.asarray(episode)
    return attention.attention(q, k, v, episode=episode, window=window, scale=0.4, implementation=implementation)


@pytest.mark.parametrize("window", [None, 1, 4, 9])
@pytest.mark.parametrize("episode", [None, EPISODE])
def test_xla_against_a_loop(episode, window):
    q, k, v = arrays()
    np.testing.assert_allclose(run("xla", q, k, v, episode, window), slow(q, k, v, episode, window), atol=2e-6)


@pytest.mark.parametrize(("block", "episode", "window"), [(8, None, None), (5, EPISODE, None), (5, EPISODE, 4)])
def test_blockwise_against_xla_with_gradients(monkeypatch, block, episode, window):
    """Blocks that divide the row, and that do not."""
    monkeypatch.setattr(attention, "BLOCK", block)
    q, k, v = arrays()

    @functools.partial(jax.jit, static_argnames="how")
    def value_and_grad(how):
        return jax.value_and_grad(lambda *a: jnp.sum(jnp.sin(run(how, *a, episode, window))), (0, 1, 2))(q, k, v)

    for a, b in zip(jax.tree.leaves(value_and_grad("blockwise")), jax.tree.leaves(value_and_grad("xla"))):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_blockwise_memory_is_linear():
    """No array of the program, backward pass included, holds T x T scores."""
    length = 8 * attention.BLOCK
    row = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)

    def loss(q, k, v):
        return attention.attention(q, k, v, episode=None, window=None, scale=1.0, implementation="blockwise").sum()

    compiled = jax.jit(jax.grad(loss)).lower(row, row, row).compile().memory_analysis()
    assert compiled.temp_size_in_bytes < length * length  # a quarter of one float32 score matrix


@pytest.mark.parametrize("window", [None, 4])
def test_splash_interpreted_against_xla(window):
    q, k, v = (np.random.default_rng(n).standard_normal((1, 128, n, 64)).astype(np.float32) for n in (2, 1, 1))
    episode = np.repeat([[1, 2, 0]], [50, 60, 18], axis=1)
    for sliding in (0, 1) if window else (0,):
        pair = None if window is None else (window, jnp.int32(sliding))
        ours = splash.attend(q, k, v, jnp.asarray(episode), pair, 0.4, interpret=True)
        expected = run("xla", q, k, v, episode, window if sliding else None)
        np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("window", [None, 100])
def test_splash_interpreted_over_several_blocks_with_gradients(window):
    """P10: 384 tokens are three blocks each way; two episodes that begin inside blocks, padding, 4 heads on 2 KV heads."""
    q, k, v = (np.random.default_rng(n).standard_normal((1, 384, n, 64)).astype(np.float32) for n in (4, 2, 2))
    episode = jnp.asarray(np.repeat([[1, 2, 0]], [185, 187, 12], axis=1))
    pair = None if window is None else (window, jnp.int32(1))

    @functools.partial(jax.jit, static_argnames="how")
    def value_and_grad(how):
        def objective(q, k, v):
            if how == "splash":
                out = splash.attend(q, k, v, episode, pair, 0.4, interpret=True)
            else:
                out = attention.attention(q, k, v, episode=episode, window=pair, scale=0.4, implementation=how)
            return jnp.sum(jnp.sin(out)), out

        return jax.value_and_grad(objective, (0, 1, 2), has_aux=True)(q, k, v)

    for a, b in zip(jax.tree.leaves(value_and_grad("splash")), jax.tree.leaves(value_and_grad("xla"))):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize(("how", "needs"), [("splash", "needs a TPU"), ("cudnn", "needs an NVIDIA GPU and dtype bfloat16")])
def test_kernels_that_cannot_run_here_say_so(how, needs):
    with pytest.raises(ValueError, match=f"attention='{how}' {needs}.*'xla' or 'blockwise'"):
        run(how, *arrays())


def test_padding_is_finite_in_value_and_gradient():
    q, k, v = arrays()
    nothing = np.zeros((B, T), np.int32)
    for how in ("xla", "blockwise"):
        grads = jax.jit(jax.grad(lambda *a, how=how: run(how, *a, nothing).sum(), (0, 1, 2)))(q, k, v)
        assert all(bool(jnp.isfinite(g).all()) for g in grads)


@pytest.mark.parametrize("window", [None, 4])
def test_cached_attention_against_a_loop(window):
    """Every query of a row, one at a time and as a chunk, against a cache longer than the row that holds junk behind it."""
    q, k, v = arrays()
    junk = np.full((B, 6, K, D), 1e4, np.float32)
    keys = np.concatenate([k, junk], 1).transpose(0, 2, 3, 1)
    values = np.concatenate([v, junk], 1).transpose(0, 2, 1, 3)
    expected = slow(q, k, v, None, window)
    positions = np.broadcast_to(np.arange(T)[None], (B, T))
    whole = cached_attention(q, keys, values, jnp.asarray(positions), window=window, scale=0.4)
    np.testing.assert_allclose(whole, expected, atol=2e-6)
    at = jnp.array([[3], [17]])  # rows at different lengths
    one = cached_attention(np.stack([q[0, 3:4], q[1, 17:18]]), keys, values, at, window=window, scale=0.4)
    np.testing.assert_allclose(one[:, 0], [expected[0, 3], expected[1, 17]], atol=2e-6)


@pytest.mark.parametrize("window", [None, 6])
def test_long_pieces_meet_the_cache_in_blocks(monkeypatch, window):
    """13 queries in blocks of 4 are what they are in one."""
    rng = np.random.default_rng(1)
    q = rng.standard_normal((B, 13, H, D)).astype(np.float32)
    keys, values = (rng.standard_normal((B, K, *shape)).astype(np.float32) for shape in ((D, 32), (32, D)))
    positions = np.arange(13)[None] + np.array([[3], [17]])
    whole = cached_attention(q, keys, values, positions, window=window, scale=0.4)
    monkeypatch.setattr(attention, "CACHED_BLOCK", 4)
    np.testing.assert_allclose(cached_attention(q, keys, values, positions, window=window, scale=0.4), whole, atol=1e-6)


@pytest.mark.parametrize(
    "heads, kv_heads, devices, expected",
    [(28, 4, 4, ("tensor", 1)), (32, 4, 8, ("tensor", 2)), (32, 8, 16, ("tensor", 2)), (6, 3, 2, ("tensor", 2)),
     (14, 2, 4, (None, 1)), (28, 4, 8, (None, 1)), (8, 2, 1, (None, 1))],
)  # fmt: skip
def test_heads_on_devices(heads, kv_heads, devices, expected):
    assert splash.head_split(heads, kv_heads, devices) == expected


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (8, 2), (3, 1)])
def test_splash_on_a_mesh_interpreted(config, heads, kv_heads):
    """2 rows over fsdp and heads over 4 devices of `tensor`: fewer KV heads are copied, 3 heads stay whole."""
    from slca.learn.sharding import make_mesh

    config.mesh.update({"data": 1, "fsdp": 2, "tensor": 4})
    mesh = make_mesh(config.mesh)
    q, k, v = (
        np.random.default_rng(n).standard_normal((2, 128, n, 64)).astype(np.float32) for n in (heads, kv_heads, kv_heads)
    )
    episode = np.repeat([[1, 2, 0], [1, 1, 1]], [50, 60, 18], axis=1)

    def on_mesh(q, k, v):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return splash.attend(q, k, v, jnp.asarray(episode), None, 0.4, interpret=True)

    rows = jax.NamedSharding(mesh, jax.P(("data", "fsdp")))
    np.testing.assert_allclose(jax.jit(on_mesh, in_shardings=rows)(q, k, v), run("xla", q, k, v, episode), atol=1e-5)


def test_auto_is_what_the_place_and_the_length_allow(monkeypatch):
    assert [attention._choice(length, 64) for length in (128, 2048, 4096)] == ["xla", "xla", "blockwise"]
    monkeypatch.setattr(attention, "_platform", lambda: "tpu")
    assert [attention._choice(*shape) for shape in ((128, 64), (4096, 128), (100, 64), (4096, 32), (2049, 64))] == [
        "splash", "splash", "xla", "blockwise", "blockwise",
    ]  # fmt: skip
    q, k, v = arrays()
    monkeypatch.undo()
    np.testing.assert_array_equal(run("auto", q, k, v, EPISODE), run("xla", q, k, v, EPISODE))
