"""The learner over adapters: the update by hand, the optimizer's share, the frozen base, meshes, checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from slca.checkpoint import Checkpoints, load_params
from slca.learn.batch import pack
from slca.learn.forward import policy_forward
from slca.learn.sharding import make_mesh, put_batch, row_shards, state_shardings
from slca.learn.update import init_state, make_update
from slca.policy import lora
from slca.policy.config import Lora
from slca.policy.transformer import logical_axes

from .conftest import Toy

RANK, ALPHA, RATE = 2, 6.0, 0.05


@pytest.fixture
def policy(config):
    """A toy with adapters whose B is not zero."""
    config.model.lora.update(rank=RANK, alpha=ALPHA)
    config.optim.clip_norm = 0.0
    toy = Toy(lora=Lora(RANK, ALPHA))
    return toy, jax.device_get(toy.params())


def step(config, toy, params, batch_args, optimizer, mesh=None):
    """(state before, state after) one update."""
    made = None
    if mesh is not None:
        config.mesh.update(dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)))
        made = make_mesh(config.mesh, jax.devices()[: int(np.prod(mesh))])
    hidden, unembed = policy_forward(toy.config, made)
    (batch,) = pack(*batch_args, config=config, data_size=row_shards(made))
    state = init_state(jax.tree.map(jnp.array, params), optimizer, jax.random.key(0))
    places = None if made is None else state_shardings(state, logical_axes(toy.config), made)
    state = state if places is None else jax.device_put(state, places)
    update = make_update(hidden, unembed, optimizer, config, mesh=made, placement=places)
    return state, update(state, batch if made is None else put_batch(batch, made))[0]


def test_the_update_by_hand(config, policy, episodes, credit):
    """dA = s dW B^T and dB = s A^T dW, where dW is the gradient that the merged matrix gets in a model without adapters."""
    toy, params = policy
    _, after = step(config, toy, params, (episodes, credit, None), optax.sgd(RATE))
    plain, model = lora.merged(params, toy.config)
    config.model.lora.rank = 0
    bare = Toy()
    assert bare.config == model
    _, moved = step(config, bare, plain, (episodes, credit, None), optax.sgd(1.0))
    scale = ALPHA / RANK
    for name in ("q", "o", "down"):
        gradient = np.asarray(plain["blocks"][name], np.float64) - np.asarray(moved.params["blocks"][name], np.float64)
        a, b = (np.asarray(params["blocks"][name + end], np.float64) for end in (lora.A, lora.B))
        wide = gradient.reshape(len(a), int(np.prod(a.shape[1:-1])), -1)
        d_a = scale * np.einsum("lio,lro->lir", wide, b.reshape(len(b), RANK, -1))
        d_b = scale * np.einsum("lir,lio->lro", a.reshape(len(a), -1, RANK), wide)
        for end, old, slope in ((lora.A, a, d_a), (lora.B, b, d_b)):
            change = np.asarray(after.params["blocks"][name + end], np.float64) - old
            np.testing.assert_allclose(change, -RATE * slope.reshape(old.shape), atol=2e-3 * RATE * np.abs(slope).max())
            assert np.abs(slope).max() > 1e-4


@pytest.mark.parametrize("mesh", [None, (2, 2, 2)])
def test_the_base_is_frozen_and_unknown_to_the_optimizer(config, policy, episodes, credit, mesh):
    toy, params = policy
    optimizer = optax.adamw(RATE, weight_decay=0.1)
    before, after = step(config, toy, params, (episodes, credit, None), optimizer, mesh)
    base = lora.frozen(params)
    jax.tree.map(np.testing.assert_array_equal, lora.frozen(after.params), base)
    assert all(not leaf.is_deleted() for leaf in jax.tree.leaves(lora.frozen(before.params)))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(lora.trainable(before.params)))  # donated
    adapters = jax.tree.leaves(lora.trainable(params))
    assert sum(leaf.size for leaf in jax.tree.leaves(after.opt_state)) == 2 * sum(leaf.size for leaf in adapters) + 1
    assert all(bool((x != y).any()) for x, y in zip(jax.tree.leaves(lora.trainable(after.params)), adapters))
    if mesh:
        _, alone = step(config, toy, params, (episodes, credit, None), optax.sgd(RATE))
        _, shared = step(config, toy, params, (episodes, credit, None), optax.sgd(RATE), mesh)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), shared.params, alone.params)


def test_a_checkpoint_holds_the_adapters_alone(config, policy, episodes, credit, tmp_path):
    toy, params = policy
    optimizer = optax.adamw(RATE)
    _, after = step(config, toy, params, (episodes, credit, None), optimizer)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, after, {}, {})
        checkpoints.wait()
        found = checkpoints.restore(after)
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path), lora.trainable(after.params))
    again = found.state._replace(params=lora.joined(params, found.state.params))
    jax.tree.map(np.testing.assert_array_equal, (again.params, again.opt_state), (after.params, after.opt_state))
