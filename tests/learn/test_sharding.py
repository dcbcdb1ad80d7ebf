import dataclasses
import importlib.util
import itertools
import json
import random
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import P
from jax.sharding import AxisType, Mesh

from slca.learn.batch import pack
from slca.learn.sharding import (
    AXES,
    make_mesh,
    opt_shardings,
    partition_spec,
    put_batch,
    row_shards,
    shardings,
    state_shardings,
)
from slca.learn.update import init_state
from tests.programs import one_device


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


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device that is not there. coords: x, y, z of a TPU."""

    id: int
    process_index: int
    coords: tuple[int, ...] = ()
    platform: str = "made up"
    device_kind: str = "made up"


def pod(X, Y, Z=1):
    """Chips of a slice with hosts of 2 x 2 x 1, chips and hosts numbered along x, then y, then z as libtpu does; out of order."""
    places = itertools.product(range(X), range(Y), range(Z))
    chips = [Chip(x + X * (y + Y * z), x // 2 + X // 2 * (y // 2 + Y // 2 * z), (x, y, z)) for x, y, z in places]
    return random.Random(0).sample(chips, len(chips))


def gpus(count, of_process):
    """Some kinds of device say their number on the host."""
    return [Chip(i, i // of_process, (i % of_process,) if of_process > 1 else ()) for i in reversed(range(count))]


@pytest.mark.parametrize(
    "chips, asked, shape, shards",  # shards: row shards of a process
    [
        (pod(4, 4, 4), (1, -1, 4), (1, 16, 4), 1),
        (pod(8, 8), (1, -1, 4), (1, 16, 4), 1),
        (pod(4, 4, 2), (1, -1, 2), (1, 16, 2), 2),
        (pod(4, 4, 2), (2, -1, 1), (2, 16, 1), 4),
        (pod(4, 4, 2), (-1, 4, 2), (4, 4, 2), 2),
        (pod(4, 2, 3), (-1, 1, 2), (12, 1, 2), 2),
        (gpus(32, 8), (1, -1, 4), (1, 8, 4), 2),
        (gpus(24, 8), (-1, 2, 2), (6, 2, 2), 4),  # fsdp goes on over a border of processes: rows do not mind
        (gpus(32, 1), (1, -1, 1), (1, 32, 1), 1),
    ],
)
def test_a_process_has_row_shards_of_its_own_in_the_order_of_processes(chips, asked, shape, shards):
    grid = make_mesh(sizes(*asked), chips).devices
    assert grid.shape == shape and set(grid.flat) == set(chips)
    found = [[chip.process_index for chip in row] for row in grid.reshape(-1, shape[-1])]
    assert found == [[i // shards] * shape[-1] for i in range(shape[0] * shape[1])]


def test_the_chips_of_a_host_are_a_ring():
    """Every step of the tensor axis is one link, the one back to its start as well; each host in the same order."""
    mesh = make_mesh(sizes(1, -1, 4), pod(4, 4, 4))
    places = np.asarray([chip.coords for chip in mesh.devices.flat]).reshape(16, 4, 3)
    assert places[0].tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]
    assert places[7].tolist() == [[2, 2, 1], [3, 2, 1], [3, 3, 1], [2, 3, 1]]  # host 7: the last of the second layer
    pairs = make_mesh(sizes(1, -1, 2), pod(4, 4, 4)).devices.reshape(16, 2, 2)
    assert [chip.coords for chip in pairs[1].flat] == [(2, 0, 0), (3, 0, 0), (3, 1, 0), (2, 1, 0)]


@pytest.mark.parametrize(
    "chips, asked, message",
    [
        (gpus(32, 1), (1, -1, 4), r"mesh\.tensor=4: .* 1 device\(s\) of a process.* one process a host"),
        (pod(4, 4, 4), (1, -1, 8), r"mesh\.tensor=8: .* 4 device\(s\) of a process"),
        (gpus(12, 6), (1, 3, 4), r"mesh\.tensor=4: .* 6 device\(s\) of a process"),
        (gpus(12, 8), (1, -1, 4), r"process 0 has 8 devices and process 1 has 4"),
    ],
)
def test_a_row_that_several_processes_would_hold_is_refused(chips, asked, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(sizes(*asked), chips)


@pytest.mark.parametrize(
    "processes, message",
    [
        ([[0, 1], [0, 1]], "row shard 0 lies on the processes 0, 1"),  # as it was on pods: the halves of a row on two hosts
        ([[0, 0], [0, 0], [1, 1], [0, 0]], "processes 0, 0, 1, 0"),
        ([[1, 1], [0, 0]], "processes 1, 0"),
        ([[0, 0], [1, 1], [0, 0], [1, 1]], "processes 0, 1, 0, 1"),
    ],
)
def test_put_batch_refuses_a_mesh_whose_rows_are_not_those_of_the_processes(processes, message):
    chips = np.empty(np.shape(processes), object)
    for n, at in enumerate(np.ndindex(chips.shape)):
        chips[at] = Chip(n, processes[at[0]][at[1]])
    crossing = Mesh(chips[None], AXES, axis_types=(AxisType.Auto,) * 3)
    with pytest.raises(ValueError, match=message):
        put_batch((np.zeros((4, 8), np.int32),), crossing)


TOPOLOGY = """
import json, sys
from slca.aot import chips
topology, *sizes = sys.argv[1:]
chips.prepare(topology)
from slca.learn.sharding import make_mesh
mesh = make_mesh(dict(zip(("data", "fsdp", "tensor"), map(int, sizes))), chips.target(topology).devices)
print(json.dumps([[chip.process_index for chip in row] for row in mesh.devices[0]]))
"""


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is missing (extra [tpu])")
@pytest.mark.parametrize("topology, tensor", [("v5p:4x4x4", 4), ("v5e:8x8", 4), ("v6e:8x8", 4), ("v5p:4x4x2", 2)])
def test_a_row_shard_of_a_real_slice_lies_on_one_host(topology, tensor):
    """Hosts of 4 chips: with tensor=4 a row shard a host, with tensor=2 two."""
    command = [sys.executable, "-c", TOPOLOGY, topology, "1", "-1", str(tensor)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=one_device())
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [[i * tensor // 4] * tensor for i in range(16)]


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
