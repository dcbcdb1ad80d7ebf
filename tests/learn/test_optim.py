import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers

from slca.learn.optim import matrices, optimizer, schedule

AXES = {
    "embed": ("vocab", "embed"),
    "q": ("layers", "embed", "heads", None),
    "o": ("layers", "heads", None, "embed"),
    "n": ("layers", "norm"),
}


def params():
    rng = np.random.default_rng(0)
    shapes = {"embed": (6, 8), "q": (2, 8, 2, 3), "o": (2, 2, 3, 8), "n": (2, 8)}
    return {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "name, warmup, expected",  # steps 0, 2, 5, 10 of 10
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("constant", 4, [0, 0.5, 1, 1]),
        ("linear", 0, [1, 0.8, 0.5, 0]),
        ("linear", 0.2, [0, 1, 0.625, 0]),
        ("cosine", 0, [1, 0.5 + 0.5 * np.cos(np.pi * 0.2), 0.5, 0]),
        ("cosine", 2, [0, 1, 0.5 + 0.5 * np.cos(np.pi * 3 / 8), 0]),
    ],
)
def test_schedules_by_hand(name, warmup, expected):  # M26
    rate = schedule(name, 1e-3, 10, warmup)
    got = [rate(jnp.int32(step)) for step in (0, 2, 5, 10)]
    np.testing.assert_allclose(got, np.array(expected) * 1e-3, atol=1e-9)
    assert all(x.dtype == jnp.float32 for x in got)


def test_a_warmup_must_leave_something():
    with pytest.raises(ValueError, match="warmup of 500 steps leaves nothing of the 500"):
        schedule("constant", 1e-6, 500, 500)
    with pytest.raises(ValueError, match="expected one of"):
        schedule("step", 1e-6, 500)


def test_adamw_first_step_by_hand(config):
    """m/sqrt(v) of the first step is the sign of the gradient; decay is decoupled and times the rate."""
    config.optim.update(lr=0.1, weight_decay=0.5)
    tx = optimizer(config.optim, schedule("constant", 0.1, 10))
    p = {"w": jnp.asarray([2.0, -1.0])}
    updates, _ = tx.update({"w": jnp.asarray([3.0, -4.0])}, tx.init(p), p)
    np.testing.assert_allclose(updates["w"], -0.1 * (np.array([1, -1]) + 0.5 * np.array([2, -1])), rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_eps_is_that_of_the_config(config, name):
    """The first Adam step of a gradient g is g / (|g| + eps), of 0.5 with eps 0.5 half of a whole one; an embedding has one under muon too."""
    steps = []
    for eps in (1e-12, 0.5):
        config.optim.update(name=name, weight_decay=0.0, eps=eps)
        tx = optimizer(config.optim, schedule("constant", 1.0, 10), AXES)
        p = params()
        steps.append(tx.update(jax.tree.map(lambda x: jnp.full_like(x, 0.5), p), tx.init(p), p)[0]["embed"])
    np.testing.assert_allclose(steps[1], steps[0] / 2, rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_each_optimizer_goes_downhill_and_keeps_its_dtypes(config, name):  # W9
    config.optim.update(name=name, weight_decay=0.01)
    tx = optimizer(config.optim, schedule("constant", 0.02, 40), AXES)
    p = params()
    state = tx.init(p)
    dtypes = jax.tree.map(lambda x: x.dtype, state)

    def objective(p):
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(p))

    @jax.jit
    def step(p, state):
        updates, state = tx.update(jax.grad(objective)(p), state, p)
        return optax.apply_updates(p, updates), state

    first = float(objective(p))
    for _ in range(10):
        p, state = step(p, state)
    assert float(objective(p)) < first * 0.9
    assert jax.tree.map(lambda x: x.dtype, state) == dtypes


def test_adafactor_decay_is_times_the_rate(config):
    """optax.adafactor adds its decay after the rate: 1 % a step at any rate."""
    config.optim.update(name="adafactor", weight_decay=0.5)
    tx = optimizer(config.optim, schedule("constant", 1e-3, 10))
    p = {"w": jnp.full((3,), 2.0)}
    updates, _ = tx.update({"w": jnp.zeros(3)}, tx.init(p), p)
    np.testing.assert_allclose(updates["w"], -1e-3 * 0.5 * 2.0, rtol=1e-5)


def test_muon_knows_inputs_from_outputs(config):
    expected = {"embed": None, "q": MuonDimensionNumbers((1,), (2, 3)), "o": MuonDimensionNumbers((1, 2), (3,)), "n": None}
    assert matrices(AXES) == expected
    config.optim.update(name="muon", weight_decay=0.0)
    tx = optimizer(config.optim, schedule("constant", 1.0, 10), AXES)
    p = params()
    updates, _ = tx.update(p, tx.init(p), p)
    layer = np.asarray(updates["q"][1]).reshape(8, 6)  # orthogonalised: singular values alike
    values = np.linalg.svd(layer, compute_uv=False)
    assert values.min() > 0.5 * values.max()


def test_unknown_or_incomplete_optimizers_are_refused(config):
    config.optim.name = "sgd"
    with pytest.raises(ValueError, match="expected one of"):
        optimizer(config.optim, schedule("constant", 1.0, 1), AXES)
    config.optim.name = "muon"
    with pytest.raises(ValueError, match="muon with the model's logical axes"):
        optimizer(config.optim, schedule("constant", 1.0, 1))
