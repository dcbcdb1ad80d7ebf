import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.sharding import Mesh

from slca.aot.flops import count
from slca.policy import splash, transformer
from slca.policy.config import ModelConfig


def of(function, *shapes):
    return jax.jit(function).trace(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).jaxpr


def test_products_and_loops():
    dot = 2 * 3 * 5 * 7
    assert count(of(jnp.dot, (3, 5), (5, 7))) == dot
    assert count(of(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (4, 3, 5), (4, 5, 7))) == 4 * dot
    square = 2 * 6**3
    assert count(of(lambda x: lax.scan(lambda c, _: (c @ x, None), x, None, length=11)[0], (6, 6))) == 11 * square
    nested = lambda x: lax.scan(lambda c, _: (lax.fori_loop(0, 3, lambda _, y: y @ x, c), None), x, None, length=2)[0]  # noqa: E731
    assert count(of(nested, (6, 6))) == 6 * square  # a fori_loop with fixed ends is a scan
    branches = lambda x: lax.cond(x[0, 0] > 0, lambda: x @ x @ x, lambda: x @ x)  # noqa: E731
    assert count(of(branches, (6, 6))) == 2 * square


def test_a_loop_that_ends_by_its_data_takes_the_trips_it_is_told():
    jaxpr = of(lambda x: lax.while_loop(lambda y: y.sum() > 0, lambda y: y @ x, x), (6, 6))
    assert count(jaxpr, unknown_trips=9) == 9 * 2 * 6**3


def test_gradients_and_recomputation():
    def loss(w, x):
        return jax.checkpoint(lambda x: jnp.sin(x @ w) @ w)(x).sum()

    dot = 2 * 4 * 6 * 6
    # forward 2, recomputed 1 (the second product is not needed again), backward 2 for w and 1 for the inside of sin
    assert count(of(lambda w, x: jax.grad(loss)(w, x), (6, 6), (4, 6))) == (2 + 1 + 3) * dot


def test_a_shard_map_counts_every_device():
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("x",))
    local = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    assert count(of(local, (8, 6), (6, 5))) == 2 * 8 * 6 * 5
    mesh = Mesh(np.asarray(jax.devices()).reshape(4, 2), ("x", "y"))  # split by hand over x, by the compiler over y
    local = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
    assert count(of(local, (8, 6), (6, 5))) == 2 * 8 * 6 * 5


def test_splash_counts_blocks_at_or_under_the_diagonal():
    """2 heads of 64, 1,024 tokens in blocks of 512: 3 of 4 pairs of blocks, two products each."""
    q, k = (jax.ShapeDtypeStruct((1, 1024, n, 64), jnp.float32) for n in (2, 1))
    forward = jax.jit(lambda q, k: splash.attend(q, k, k, None, None, 1.0, interpret=True))
    product = 3 * 2 * (2 * 512 * 512 * 64)
    assert count(forward.trace(q, k).jaxpr) == 2 * product
    backward = jax.jit(jax.grad(lambda q, k: splash.attend(q, k, k, None, None, 1.0, interpret=True).sum(), (0, 1)))
    # forward 2, dq: scores, their gradient and dq itself, dk and dv: scores, their gradient and two more; outside, output x its gradient
    assert count(backward.trace(q, k).jaxpr) == (2 + 3 + 4) * product + 2 * 2 * 1024 * 64


def test_a_decoder_by_hand():
    D, H, K, h, F, L, V, B, T = 32, 4, 2, 8, 48, 3, 64, 2, 16
    config = ModelConfig("llama", vocab=V, width=D, layers=L, heads=H, kv_heads=K, head_dim=h, ff=F, attention="xla")
    params = jax.eval_shape(lambda: transformer.init(config, jax.random.key(0)))
    tokens = jax.ShapeDtypeStruct((B, T), jnp.int32)
    model = transformer.Transformer(config)
    jaxpr = jax.jit(lambda p, t: model.apply({"params": p}, t, t)).trace(params, tokens).jaxpr
    projections = 2 * D * (H * h + 2 * K * h) + 2 * H * h * D + 3 * 2 * D * F
    scores = 2 * 2 * H * h * T  # dense: every key for every query
    assert count(jaxpr) == B * T * L * (projections + scores)
