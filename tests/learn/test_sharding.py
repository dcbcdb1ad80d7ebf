import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import P
from jax.sharding import AxisType

from slca.learn.batch import pack
from slca.learn.sharding import make_mesh, opt_shardings, partition_spec, put_batch, row_shards, shardings, state_shardings
from slca.learn.update import init_state


def sizes(data, fsdp, tensor):
    return {"data": data, "fsdp": fsdp, "tensor": tensor}


@pytest.mark.parametrize("asked, shape", [((-1, 1, 1), (8, 1, 1)), ((2, -1, 2), (2, 2, 2)), ((1, 2, 4), (1, 2, 4))])
def test_make_mesh(config, asked, shape):
    config.mesh.update(sizes(*asked))
    mesh = make_mesh(config.mesh)
    assert mesh.devices.shape == shape and mesh.axis_names == ("data", "fsdp", "tensor")
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert row_shards(mesh) == shape[0] * shape[1] and row_shards(None) == 1


@pytest.mark.parametrize(
    "asked, message",
    [
        ((-1, 3, 1), "3 does not divide the 8 devices"),
        ((2, 2, 1), "4 does not equal the 8 devices"),
        ((-1, -1, 1), "at most one is -1"),
        ((0, 1, 1), "sizes are >= 1"),
    ],
)
def test_a_mesh_that_does_not_fit_says_why(asked, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(sizes(*asked))


@pytest.fixture
def mesh():
    return make_mesh(sizes(1, 2, 4))


@pytest.mark.parametrize(
    "shape, axes, expected",
    [
        ((3, 8, 16), ("layers", "embed", "mlp"), P(None, "fsdp", "tensor")),
        ((3, 8, 2, 4), ("layers", "embed", "kv_heads", None), P(None, "fsdp", None, None)),  # 2 KV heads on 4 devices
        ((3, 7), ("layers", "embed"), P(None, None)),  # 7 on 2
        ((50, 8), ("vocab", "embed"), P(None, "fsdp")),
    ],
)
def test_partition_spec(mesh, shape, axes, expected):
    assert partition_spec(shape, axes, mesh) == expected


def test_collisions_and_unknown_names_are_errors(mesh):
    with pytest.raises(ValueError, match=r"q: logical axes .* put two dimensions on one mesh axis"):
        partition_spec((8, 8), ("heads", "mlp"), mesh, name="q")
    with pytest.raises(KeyError, match="no rule for logical axis 'width'"):
        partition_spec((8,), ("width",), mesh)
    with pytest.raises(ValueError, match="q has shape"):
        partition_spec((8, 8), ("heads",), mesh, name="q")


def test_every_parameter_of_the_policy_has_a_place(mesh, toy):
    places = shardings(jax.eval_shape(toy.params), toy.axes, mesh)
    assert places["blocks"]["gate"].spec == P(None, "fsdp", "tensor")
    assert places["blocks"]["k"].spec == P(None, "fsdp", None, None)
    big = [p.spec for p in jax.tree.leaves(places) if len(p.spec) >= 3 or p.spec == P("tensor", "fsdp")]
    assert all(any(spec) for spec in big) and len(big) >= 8  # nothing big is replicated (S2)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_scalars_of_an_optimizer_are_float32_beside_bf16_parameters(toy, config, name):
    """W8: a rate or a count in bfloat16 stops moving, or makes NaN; S1: they are replicated, so that a step compiles once."""
    from slca.learn.optim import optimizer, schedule

    config.optim.name = name
    rate = schedule("cosine", 1e-6, 500, 0.1)
    assert rate(jnp.int32(3)).dtype == jnp.float32 and float(rate(jnp.int32(3))) == pytest.approx(3 / 50 * 1e-6, rel=1e-6)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), jax.eval_shape(toy.params))
    state = jax.eval_shape(optimizer(config.optim, rate, toy.axes).init, params)
    scalars = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim == 0]
    assert scalars and all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in scalars)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_moments_follow_their_parameter(mesh, toy, config, name):  # S1, S2
    from slca.learn.optim import optimizer, schedule

    config.optim.name = name
    params = jax.eval_shape(toy.params)
    state = jax.eval_shape(
        lambda p: init_state(p, optimizer(config.optim, schedule("constant", 1.0, 9), toy.axes), jax.random.key(0)), params
    )
    places = state_shardings(state, toy.axes, mesh)
    assert places.step.spec == places.key.spec == P()
    by_shape = {p.shape: s.spec for p, s in zip(jax.tree.leaves(params), jax.tree.leaves(places.params), strict=True)}
    leaves = list(zip(jax.tree.leaves(state.opt_state), jax.tree.leaves(places.opt_state), strict=True))
    followed = [(leaf, place) for leaf, place in leaves if leaf.shape in by_shape]
    assert len(followed) >= len(by_shape)
    assert all(place.spec in (by_shape[leaf.shape], P()) for leaf, place in followed)
    assert all(place.spec == P() for leaf, place in leaves if leaf.shape not in by_shape)


def test_two_parameters_of_one_shape_keep_their_own_places(mesh):
    params = {"a": jnp.zeros((8, 8)), "b": jnp.zeros((8, 8))}
    places = shardings(params, {"a": ("embed", "mlp"), "b": ("mlp", "embed")}, mesh)
    moments = opt_shardings(jax.eval_shape(optax.adam(1.0).init, params), params, places, mesh)[0]
    assert moments.mu["a"].spec == P("fsdp", "tensor") and moments.nu["b"].spec == P("tensor", "fsdp")


def test_put_batch_splits_rows(config, episodes, credit):
    mesh = make_mesh(sizes(2, 2, 2))
    (batch,) = pack(episodes, credit, config=config, data_size=row_shards(mesh))
    placed = put_batch(batch, mesh)
    assert all(x.sharding.spec == P(("data", "fsdp")) for x in jax.tree.leaves(placed))
    assert {s.data.shape for s in placed.tokens.addressable_shards} == {(2, 40)}
    for a, b in zip(placed[:10], batch[:10], strict=True):
        np.testing.assert_array_equal(a, b)
    again = put_batch(placed._replace(old_logprob=batch.old_logprob), mesh)  # device arrays stay as they are
    assert again.tokens is placed.tokens
