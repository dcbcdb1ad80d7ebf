import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from slca.learn.logprob import chunk_tokens, token_divergence, token_logprob

B, T, D, V = 3, 23, 5, 37


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    return (
        jnp.asarray(rng.normal(size=(B, T, D)), jnp.float32),
        jnp.asarray(rng.normal(size=(D, V)) * 2, jnp.float32),
        jnp.asarray(rng.integers(0, V, (B, T))),
    )


def reference(hidden, unembed, tokens, temperature):
    """The whole [B, T, V] table in float64."""
    logits = np.asarray(hidden, np.float64)[:, :-1] @ np.asarray(unembed, np.float64) / temperature
    table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(table, np.asarray(tokens)[:, 1:, None], -1)[..., 0]
    entropy = -(np.exp(table) * table).sum(-1)
    return np.pad(chosen, ((0, 0), (1, 0))), np.pad(entropy, ((0, 0), (1, 0)))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("chunk", [1, 7, 500])
def test_equals_the_full_table(inputs, chunk, temperature):  # contract 10, P1: temperature divides the logits
    logprob, entropy = jax.jit(token_logprob, static_argnums=4)(*inputs, temperature, chunk)
    expected = reference(*inputs, temperature)
    np.testing.assert_allclose(logprob, expected[0], atol=2e-6, rtol=1e-5)
    np.testing.assert_allclose(entropy, expected[1], atol=2e-6, rtol=1e-5)
    assert logprob.dtype == entropy.dtype == jnp.float32


def test_gradient_does_not_depend_on_the_chunk(inputs):
    hidden, unembed, tokens = inputs
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(B, T)), jnp.float32)

    def objective(hidden, unembed, chunk):
        logprob, entropy = token_logprob(hidden, unembed, tokens, 0.8, chunk)
        return jnp.sum(weight * logprob) + 0.1 * jnp.sum(entropy)

    gradient = jax.jit(jax.grad(objective, (0, 1)), static_argnums=2)
    for a, b in zip(gradient(hidden, unembed, 4), gradient(hidden, unembed, T), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def array_sizes(jaxpr):
    """Element counts of every value in a jaxpr and all inner ones."""
    for equation in jaxpr.eqns:
        yield from (v.aval.size for v in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from array_sizes(inner)


def test_no_array_has_a_row_of_logits_for_every_token(inputs):  # S4
    def largest(chunk):
        def objective(hidden, unembed):
            return jnp.sum(token_logprob(hidden, unembed, inputs[2], 1.0, chunk)[0])

        return max(array_sizes(jax.make_jaxpr(jax.grad(objective, (0, 1)))(*inputs[:2]).jaxpr))

    assert largest(4) == B * 4 * V
    assert largest(T) == B * (T - 1) * V  # the test can see what it forbids


def test_divergence_of_two_words():  # SC-GRPO: teacher (.8, .2), student (.5, .5)
    teacher, student = (jnp.log(jnp.asarray(p, jnp.float32))[None, None] for p in ([0.8, 0.2], [0.5, 0.5]))
    one = jnp.eye(2, dtype=jnp.float32)
    found = token_divergence(student, teacher, (one, one), jnp.asarray([[0]]))
    assert float(found.kl[0, 0]) == pytest.approx(0.1927, abs=5e-5)
    assert float(token_divergence(teacher, student, (one, one), jnp.asarray([[0]])).kl[0, 0]) == pytest.approx(0.2231, abs=5e-5)
    np.testing.assert_allclose([*found.logprob[0], *found.teacher_logprob[0], *found.entropy[0]], [np.log(0.5), np.log(0.8), np.log(2)], rtol=1e-6)  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 7, 500])
def test_divergence_equals_the_full_table_and_never_holds_it(inputs, chunk):
    hidden, unembed, tokens = inputs
    other = hidden[::-1] * 0.5

    def compare(hidden, other):
        return token_divergence(hidden, other, (unembed, unembed), tokens, 0.7, chunk)

    found = jax.jit(compare)(hidden, other)
    s, t = (np.asarray(jax.nn.log_softmax(x @ unembed / 0.7), np.float64) for x in (hidden, other))
    np.testing.assert_allclose(found.kl, (np.exp(t) * (t - s)).sum(-1), atol=1e-5)
    np.testing.assert_allclose(found.entropy, -(np.exp(s) * s).sum(-1), atol=1e-5)
    sizes = list(array_sizes(jax.make_jaxpr(jax.grad(lambda h: compare(h, other).kl.sum()))(hidden).jaxpr))
    assert max(sizes) <= max(B * min(chunk, T) * V, B * (T + chunk) * D)


def test_bf16_products_accumulate_in_f32(inputs):
    hidden, unembed, tokens = inputs
    hidden, unembed = hidden.astype(jnp.bfloat16), unembed.astype(jnp.bfloat16)
    logprob, _ = token_logprob(hidden, unembed, tokens, 1.0, 8)
    expected = reference(hidden.astype(jnp.float32), unembed.astype(jnp.float32), tokens, 1.0)[0]
    np.testing.assert_allclose(logprob, expected, atol=1e-4)


def test_bf16_gradients_add_up_in_f32():
    """300 chunks whose gradients of the matrix are equal: in bf16 the sum would stop growing at 256 of them."""
    hidden, tokens = jnp.ones((1, 301, 2), jnp.bfloat16), jnp.zeros((1, 301), jnp.int32)
    gradient = jax.grad(lambda w: jnp.sum(token_logprob(hidden, w, tokens, 1.0, 1)[0]))
    assert float(gradient(jnp.zeros((2, 2), jnp.bfloat16))[0, 0]) == 150.0  # 300 * (1 - 1/2)
    assert float(gradient(jnp.asarray([[-9.0, 9.0]] * 2, jnp.bfloat16))[0, 0]) == 300.0


def test_rows_of_one_token_have_nothing_to_score():
    logprob, entropy = token_logprob(jnp.ones((2, 1, D)), jnp.ones((D, V)), jnp.zeros((2, 1), int), 1.0, 8)
    assert not logprob.any() and not entropy.any()


def test_chunk_from_bytes():
    assert chunk_tokens(64 * 2**20, 8, 1024) == 2048
    assert chunk_tokens(64 * 2**20, 8, 151_936) == 13
    assert chunk_tokens(1, 8, 151_936) == 1
