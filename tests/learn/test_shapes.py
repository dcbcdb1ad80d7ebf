"""One number of rows a row length: it holds whatever a step may bring, and empty micro-batches change nothing."""

import jax
import numpy as np
import optax
import pytest

from slca.learn.batch import pack
from slca.learn.shapes import batch_shapes, empty, widened
from slca.learn.update import init_state, make_update

from .conftest import episode


@pytest.fixture
def config(config):
    """Two prompts of four rollouts, up to 10 + 30 tokens long."""
    config.rollout.update(prompts=2, group=4, max_prompt_tokens=10, max_response_tokens=30)
    return config


def test_rows_by_hand(config):
    assert batch_shapes(config, 2) == {40: 8, 80: 4}  # one of the longest a row, two a row
    assert batch_shapes(config, 1) == {40: 4, 80: 2}
    config.rollout.group = 5  # 10 rollouts: ten rows, five rows; micro-batches of two, a power of two of them
    assert batch_shapes(config, 2) == {40: 16, 80: 8}
    assert batch_shapes(config, 2, shards=4) == {40: 16, 80: 8}
    assert batch_shapes(config, 2, groups=True) == {40: 4, 80: 4}  # at worst a micro-batch a group
    config.train.pack = False
    assert batch_shapes(config, 2) == {40: 16, 80: 16}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("groups", [True, False])
def test_whatever_the_lengths_they_fit(config, packed, groups):  # contract 15, S6, M25
    config.train.update(pack=packed, micro_rows=4)
    shapes, rng, seen = batch_shapes(config, 2, groups=groups), np.random.default_rng(0), set()
    for _ in range(30):
        most = int(rng.integers(2, 31))
        rows = [
            episode(int(rng.integers(1, 11)), [(int(n), 0)], group=k // 4, sample=k % 4, end=rng.choice(["answered", "dead"]))
            for k, n in enumerate(rng.integers(1, most, 8))
        ]
        (batch,) = pack(rows, np.ones((8, 1)), config=config, groups=groups)
        seen.add(widened(batch, shapes, 4).tokens.shape)
    assert seen <= {(rows, length) for length, rows in shapes.items()}


def test_empty_micro_batches_change_no_bit(config, toy, episodes, credit):
    (batch,) = pack(episodes, credit, config=config)
    wide = widened(batch, {40: 16}, 2)
    assert (batch.tokens.shape, wide.tokens.shape) == ((4, 40), (16, 40))
    assert all(a.dtype == b.dtype for a, b in zip(batch[:10], wide[:10], strict=True))
    optimizer, after = optax.adamw(1e-2), []
    update = make_update(toy.lookup, toy.unembed, optimizer, config)
    for x in (batch, wide):
        state, metrics = update(init_state(toy.params(), optimizer, jax.random.key(0)), x)
        after.append(jax.device_get((state.params, state.opt_state, metrics)))
    jax.tree.map(np.testing.assert_array_equal, *after)


def test_a_batch_without_an_episode_leaves_the_state_as_it_is(config, toy):
    optimizer = optax.adamw(1e-2)
    update = make_update(toy.lookup, toy.unembed, optimizer, config)
    state = init_state(toy.params(), optimizer, jax.random.key(0))
    before = jax.device_get((state.params, state.opt_state, state.step))
    state, metrics = update(state, empty(8, 40))
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get((state.params, state.opt_state, state.step)))
    assert float(metrics["step/taken"][0]) == 0.0 and float(metrics["step/empty"][0]) == 1.0


def test_groups_and_missing_fields_pass(config, episodes, credit):
    config.train.micro_rows = 4
    (batch,) = pack(episodes, credit, config=config, groups=True)
    wide = widened(batch._replace(old_logprob=None), {40: 16}, 4)
    assert wide.old_logprob is None and wide.group.shape == (16, 40) and wide.group.max() == batch.group.max()
    assert sorted(wide.group[wide.episode > 0]) == sorted(batch.group[batch.episode > 0])


def test_a_batch_that_does_not_fit_is_refused(config, episodes, credit):
    (batch,) = pack(episodes, credit, config=config)
    for shapes in ({40: 2}, {80: 8}, {40: 5}):
        with pytest.raises(ValueError, match="a batch of 4 rows of 40 tokens in micro-batches of 2; this run's are"):
            widened(batch, shapes, 2)
