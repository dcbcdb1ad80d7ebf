"""The written-out backward pass against the library's attention, which derives its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.policy import dense


def arrays(heads, kv_heads, length=24, size=6, rows=2, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(rows, length, n, size)), dtype) for n in (heads, kv_heads, kv_heads)]


def library(q, k, v, seen, scale):
    return jax.nn.dot_product_attention(q, k, v, mask=seen, scale=scale, implementation="xla")


def masks(length=24):
    """Plain causality; two episodes a row, ending at other places."""
    causal = np.tri(length, dtype=bool)[None, None]
    episode = np.stack([np.arange(length) // 10, np.arange(length) // 15])
    return {"causal": causal, "packed": causal & (episode[:, None, :, None] == episode[:, None, None, :])}


@pytest.mark.parametrize("mask", ["causal", "packed"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
def test_value_and_gradients_are_the_librarys(heads, kv_heads, mask):
    given, seen = arrays(heads, kv_heads), masks()[mask]

    def found(attention):
        def objective(q, k, v):
            out = attention(q, k, v, seen, 0.4)
            return jnp.sum(jnp.sin(out)), out

        return jax.value_and_grad(objective, (0, 1, 2), has_aux=True)(*given)

    (_, out), grads = found(dense.attend)
    (_, expected), theirs = found(library)
    np.testing.assert_allclose(out, expected, atol=2e-6)
    for own, other in zip(grads, theirs, strict=True):
        np.testing.assert_allclose(own, other, atol=5e-6)


def test_bfloat16_stays_bfloat16_and_close():
    given, seen = arrays(4, 2, dtype=jnp.bfloat16), masks()["packed"]

    def grads(attention, given):
        return jax.grad(lambda *x: jnp.sum(jnp.sin(attention(*x, seen, 0.4).astype(jnp.float32))), (0, 1, 2))(*given)

    exact = grads(library, [x.astype(jnp.float32) for x in given])
    assert dense.attend(*given, seen, 0.4).dtype == jnp.bfloat16
    for own, other in zip(grads(dense.attend, given), exact, strict=True):
        assert own.dtype == jnp.bfloat16
        np.testing.assert_allclose(own.astype(np.float32), other, atol=0.05)


def test_a_query_without_a_key_is_finite():
    given = arrays(2, 1, length=4)
    seen = np.zeros((1, 1, 4, 4), bool)
    grads = jax.grad(lambda *x: jnp.sum(dense.attend(*x, seen, 0.4) ** 2), (0, 1, 2))(*given)
    assert all(np.isfinite(g).all() for g in grads)
