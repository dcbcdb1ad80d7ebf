import jax
import numpy as np
import pytest

from slca.learn.batch import pack
from slca.learn.forward import policy_forward
from slca.learn.probe import make_logprob
from slca.learn.sharding import make_mesh, put_batch, row_shards, shardings

from .test_batch import find


@pytest.mark.parametrize("packed, temperature", [(True, 0.7), pytest.param(False, 1.0, marks=pytest.mark.nightly)])
def test_logprobs_are_those_of_each_episode_alone(
    config, toy, episodes, credit, packed, temperature
):  # contract 10, P1, P10, P11
    config.train.pack = packed
    config.rollout.temperature = temperature
    (batch,) = pack(episodes, credit, config=config)
    params = toy.params()
    got = np.asarray(make_logprob(*policy_forward(toy.config), config)(params, batch))
    np.testing.assert_array_equal(np.isnan(got), batch.loss_weight == 0)
    alone = jax.jit(toy.hidden)
    for e in (e for e in episodes if e.scored):
        row, mask = find(batch, e.tokens)
        expected = toy.reference_logprob(params, np.pad(e.tokens, (0, 40 - len(e.tokens))), temperature, alone)[: len(e.tokens)]
        sampled = batch.loss_weight[row][mask] > 0
        np.testing.assert_allclose(got[row][mask][sampled], expected[sampled], atol=1e-5)


def test_the_mesh_changes_nothing(config, toy, episodes, credit):
    config.mesh.update(data=2, fsdp=2, tensor=2)
    mesh = make_mesh(config.mesh)
    params = toy.params()
    places = shardings(params, toy.axes, mesh)
    (batch,) = pack(episodes, credit, config=config, data_size=row_shards(mesh))
    there = make_logprob(*policy_forward(toy.config, mesh), config, mesh=mesh, params_at=places)
    got = there(jax.device_put(params, places), put_batch(batch, mesh))
    assert got.sharding.spec == jax.P(("data", "fsdp"))
    config.train.micro_rows = 8
    here = make_logprob(*policy_forward(toy.config), config)(params, batch)
    np.testing.assert_allclose(got, here, atol=1e-5)
