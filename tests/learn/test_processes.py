"""Two processes over loopback: each packs its own episodes; divisors, shapes and gradients are those of one process."""

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import optax

from slca.learn.batch import pack
from slca.learn.update import init_state, make_update
from tests.programs import one_device

WORKER = """
import sys
rank, port, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
import numpy as np, optax
from jax.experimental import multihost_utils
from slca.learn.batch import pack
from slca.learn.sharding import make_mesh, put_batch, state_shardings
from slca.learn.update import init_state, make_update
from configs.default import get_config
from tests.learn.conftest import Toy, credits, shrink, two_groups

config, toy = shrink(get_config()), Toy()
config.train.micro_rows = 1
mesh = make_mesh(config.mesh)
optimizer = optax.adamw(1e-2)
state = init_state(toy.params(), optimizer, jax.random.key(0))
placement = state_shardings(state, toy.axes, mesh)
state = jax.jit(lambda: init_state(toy.params(), optimizer, jax.random.key(0)), out_shardings=placement)()
mine = slice(0, 4) if rank == 0 else slice(4, 8)  # groups of different sizes and lengths
gather = lambda counts: multihost_utils.process_allgather(counts)
(batch,) = pack(two_groups()[mine], credits()[mine], config=config, data_size=2, gather=gather)
update = make_update(toy.lookup, toy.unembed, optimizer, config, mesh=mesh, placement=placement)
state, metrics = update(state, put_batch(batch, mesh))
# with both devices of a process in one row shard: as many rows as both processes have, and each its own
config.mesh.update(data=1, fsdp=-1, tensor=2)
crossed = [jax.devices()[i] for i in (0, 2, 1, 3)]
placed = put_batch(batch, make_mesh(config.mesh, crossed)).tokens
assert placed.shape == (2 * batch.tokens.shape[0], batch.tokens.shape[1]), placed.shape
assert len(placed.addressable_shards) == 2
for shard in placed.addressable_shards:
    np.testing.assert_array_equal(shard.data, batch.tokens)
    assert (shard.index[0].start or 0) == rank * batch.tokens.shape[0]
if rank == 0:
    np.savez(out, loss=metrics["loss"][0], ratio=metrics["ratio"][0], embed=state.params["embed"], shape=batch.tokens.shape)
multihost_utils.sync_global_devices("done")
"""


def test_two_processes_equal_one(tmp_path, config, toy, episodes, credit):  # contract 8, H3
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    root = str(Path(__file__).parents[2])
    environment = one_device() | {"PYTHONPATH": root}
    caches = [tmp_path / f"cache-{rank}" for rank in (0, 1)]
    command = [sys.executable, "-c", textwrap.dedent(WORKER)]
    workers = [
        subprocess.Popen(
            [*command, str(rank), port, str(tmp_path / "found.npz")],
            env=environment | {"JAX_COMPILATION_CACHE_DIR": str(caches[rank])},
            cwd=root,
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]

    optimizer = optax.adamw(1e-2)
    (batch,) = pack(episodes, credit, config=config)
    state = init_state(toy.params(), optimizer, jax.random.key(0))
    state, metrics = make_update(toy.lookup, toy.unembed, optimizer, config)(state, batch)

    errors = [worker.communicate(timeout=120)[1].decode()[-2000:] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(errors)
    found = np.load(tmp_path / "found.npz")
    assert found["shape"].tolist() == [4, 40] and found["ratio"] == metrics["ratio"][0] == 96
    np.testing.assert_allclose(found["loss"], metrics["loss"][0], rtol=1e-5)
    np.testing.assert_allclose(found["embed"], state.params["embed"], atol=1e-5)
    # H5: process 0 alone writes compiled programs, so others only find them where the folder is shared
    assert any(caches[0].iterdir()) and not (caches[1].is_dir() and any(caches[1].iterdir()))
