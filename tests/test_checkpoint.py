import json
import logging
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from slca.checkpoint import Checkpoints, Mismatch, config_diff, load_params, read_run, step_folder
from slca.learn.sharding import make_mesh, settled, state_shardings
from slca.learn.update import init_state
from slca.types import TrainState

# Orbax leaves a coroutine behind when the files it was about to read are damaged.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

AXES = {"matrix": ("embed", "mlp"), "norm": (None,)}


def on(sizes, count):
    return make_mesh(dict(zip(("data", "fsdp", "tensor"), sizes, strict=True)), jax.devices()[:count])


def fresh(scale=1.0):
    params = {"matrix": jnp.arange(32.0).reshape(4, 8) * scale / 7, "norm": jnp.full((3,), scale, jnp.bfloat16)}
    state = init_state(params, optax.adamw(1e-3), jax.random.key(5))
    return state._replace(
        step=jnp.int32(7), opt_state=jax.tree.map(lambda x: x + 1 if x.dtype == jnp.int32 else x + 0.3, state.opt_state)
    )


def place(state, mesh):
    return jax.device_put(state, state_shardings(state, AXES, mesh))


def like(state, mesh):
    places = state_shardings(state, AXES, mesh)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, places)


def bits(tree):
    """Raw bytes of every leaf; typed keys by their words."""
    raw = jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(raw)]


def test_a_restored_state_needs_no_program_that_a_fresh_one_did_not(tmp_path):
    """On one device: what is bound to it compiles another program than what is not (40 s of a tiny run's, before it was seen)."""
    state = settled(fresh())
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {}, {})
        checkpoints.wait()
        found = checkpoints.restore(state).state
    update = jax.jit(lambda state: state._replace(step=state.step + 1))
    after = update(state)
    assert [x.committed for x in jax.tree.leaves(found)] == [x.committed for x in jax.tree.leaves(after)]
    update(found), update(after)
    assert update._cache_size() == 1


def damage(workdir, step):
    """Truncate every array file of the parameters."""
    for file in (Path(workdir) / "checkpoints" / str(step) / "params").rglob("*"):
        if file.is_file() and file.parent.name == "d":
            file.write_bytes(file.read_bytes()[:10])


@pytest.mark.parametrize("sizes, count", [((2, 2, 1), 4), ((1, 1, 1), 1), ((1, 4, 2), 8)])
def test_restores_bit_equal_onto_another_mesh(tmp_path, sizes, count):  # S3, contract 14
    state = place(fresh(), on((2, 2, 2), 8))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state, {"epoch": 1, "index": 17}, {"a": {"b": (1, 2.5)}}, metrics_offset=99, extra={"x": None})
    target = like(state, on(sizes, count))
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore(target)
    assert bits(found.state) == bits(state)
    assert jax.tree.map(lambda x: (x.sharding, x.dtype), found.state) == jax.tree.map(lambda x: (x.sharding, x.dtype), target)
    assert isinstance(found.state, TrainState) and isinstance(found.state.opt_state[0], optax.ScaleByAdamState)
    assert (found.step, found.data, found.metrics_offset) == (3, {"epoch": 1, "index": 17}, 99)
    assert found.config == {"a": {"b": [1, 2.5]}} and found.extra == {"x": None}
    np.testing.assert_array_equal(jax.random.uniform(found.state.key, 4), jax.random.uniform(state.key, 4))


def test_the_saved_state_is_the_one_before_donation(tmp_path):
    """The save runs behind the next updates, which reuse the very buffers that are being written."""
    state = place(fresh(), on((2, 2, 2), 8))
    state = state._replace(
        params=state.params | {"matrix": jax.device_put(jnp.zeros((512, 1024)), state.params["matrix"].sharding)}
    )
    expected = bits(state)
    spoil = jax.jit(lambda s: s._replace(params=jax.tree.map(lambda x: x + 1, s.params)), donate_argnums=0)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {}, {})
        for _ in range(20):
            state = spoil(state)
        checkpoints.wait()
        assert bits(checkpoints.restore(state).state) == expected


def test_six_steps_equal_three_and_three(tmp_path):  # contract 14, R2, R4: the learner's half
    tx = optax.adamw(1e-2)

    @jax.jit
    def step(state):
        key, noise = jax.random.split(jax.random.fold_in(state.key, state.step))
        grads = jax.tree.map(lambda x: jax.random.normal(noise, x.shape, x.dtype), state.params)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state, state.step + 1, key)

    state = straight = init_state({"w": jnp.ones((4, 4)), "b": jnp.ones((3,))}, tx, jax.random.key(1))
    for _ in range(6):
        straight = step(straight)
    for _ in range(3):
        state = step(state)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state, {}, {})
    with Checkpoints(tmp_path) as checkpoints:
        state = checkpoints.restore(state).state
    for _ in range(3):
        state = step(state)
    assert bits(state) == bits(straight)


def test_keeps_the_last_and_the_best(tmp_path):
    state = fresh()
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step, score in ((1, 0.2), (2, 0.9), (3, None), (4, 0.4), (5, 0.1)):
            checkpoints.save(step, state, {}, {}, score=score)
        checkpoints.wait()
        assert checkpoints.steps == [2, 4, 5] and checkpoints.latest == 5


def test_none_to_restore(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest is None and checkpoints.restore(fresh()) is None


def test_a_damaged_newest_checkpoint_is_set_aside(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("slca"), "propagate", True)  # a run in this process may have turned it off
    state = fresh()
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state, {"step": step}, {})
    damage(tmp_path, 2)
    with Checkpoints(tmp_path) as checkpoints, caplog.at_level(logging.ERROR):
        found = checkpoints.restore(state)
        assert found.step == 1 and bits(found.state) == bits(state)
        assert "2 is damaged" in caplog.text and (tmp_path / "checkpoints" / "damaged-2").is_dir()
        checkpoints.save(2, state, {"step": 22}, {})  # the run goes on over the same step
        checkpoints.wait()
        assert checkpoints.restore(state).data == {"step": 22}


def test_only_damaged_checkpoints(tmp_path):
    state = fresh()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, state, {}, {})
    damage(tmp_path, 4)
    for _ in range(2):  # nothing is moved: what can be put back can be put back, and the next try does not start over
        with Checkpoints(tmp_path) as checkpoints, pytest.raises(RuntimeError, match=r"are damaged: \[4\]"):
            checkpoints.restore(state)
    (tmp_path / "checkpoints" / "4").rename(tmp_path / "checkpoints" / "damaged-4")
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(RuntimeError, match=r"are damaged: \['damaged-4'\]"):
        checkpoints.restore(state)


def test_another_model_is_an_error_not_damage(tmp_path):
    state = fresh()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {}, {})
    wider = init_state({"matrix": jnp.zeros((4, 16)), "norm": jnp.zeros((3,), jnp.bfloat16)}, optax.sgd(1.0), jax.random.key(0))
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(Mismatch, match="another model or optimizer") as error:
        checkpoints.restore(wider)
    assert "['matrix']: saved float32 4 8, this run float32 4 16" in str(error.value)
    assert (tmp_path / "checkpoints" / "1").is_dir()  # nothing lost


def test_the_state_to_restore_may_depend_on_what_was_saved(tmp_path):
    state = fresh()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {"phase": "rl"}, {})
        checkpoints.wait()
        assert checkpoints.restore(lambda saved: {"rl": state}[saved["data"]["phase"]]).step == 1


def test_unknown_schema(tmp_path, monkeypatch):
    monkeypatch.setattr("slca.checkpoint.SCHEMA", 0)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, fresh(), {}, {})
    monkeypatch.undo()
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(Mismatch, match="schema 0, this version reads 1"):
        checkpoints.restore(fresh())


def test_params_alone(tmp_path):
    state = place(fresh(), on((2, 2, 2), 8))
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 12):
            checkpoints.save(step, state, {}, {"step": step})
    for path in (tmp_path, tmp_path / "checkpoints", tmp_path / "checkpoints" / "12"):
        assert step_folder(path).name == "12" and read_run(path)["config"] == {"step": 12}
        params = load_params(path)
        assert bits(params) == bits(state.params) and params["norm"].dtype == jnp.bfloat16
        assert {len(x.devices()) for x in jax.tree.leaves(params)} == {1}
    mesh = on((1, 2, 4), 8)
    places = state_shardings(state, AXES, mesh).params
    assert jax.tree.map(lambda x: x.sharding, load_params(tmp_path, places)) == places
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        load_params(tmp_path / "nothing")


def test_config_diff():
    old = {"train": {"steps": 100, "row_lengths": (1, 2)}, "loss": {"kl": "k3"}, "gone": 1}
    assert config_diff(old, json.loads(json.dumps(old))) == []
    new = {"train": {"steps": 200, "row_lengths": [1, 2]}, "loss": {"kl": "k3", "new": None}}
    assert config_diff(old, new) == ["train.steps: 100 -> 200", "gone: 1 -> (absent)", "loss.new: (absent) -> null"]
    usual = {"train": {"steps": 7}, "loss": {"new": 0.5}, "elsewhere": 1}
    assert sorted(config_diff(old, new, usual)) == ["gone: 1 -> (absent)", "loss.new: 0.5 -> null", "train.steps: 100 -> 200"]
    assert len(config_diff(old, new, {"loss": {"new": None}})) == 2


KILLED = """
import os, signal, sys, threading, time
import jax.numpy as jnp, jax, optax
from slca.checkpoint import Checkpoints
from slca.learn.update import init_state
state = init_state({"w": jnp.full((2_000_000,), 1.0)}, optax.adamw(1e-3), jax.random.key(0))
with Checkpoints(sys.argv[1], keep=1) as checkpoints:
    checkpoints.save(1, state, {"n": 1}, {})
    checkpoints.wait()
    threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    for step in range(2, 1000):
        checkpoints.save(step, state, {"n": step}, {})
"""


@pytest.mark.parametrize(
    "delay", [0.03, pytest.param(0.1, marks=pytest.mark.nightly), pytest.param(0.17, marks=pytest.mark.nightly)]
)
def test_killed_while_saving(tmp_path, delay):  # R6, R7: keep=1 never deletes the old before the new is whole
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), str(delay)], env=environment, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    state = init_state({"w": jnp.zeros((2_000_000,))}, optax.adamw(1e-3), jax.random.key(0))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        found = checkpoints.restore(state)
        assert found.step >= 1 and found.data == {"n": found.step}
        assert bool((found.state.params["w"] == 1.0).all())
        assert not [name for name in os.listdir(tmp_path / "checkpoints") if "tmp" in name]  # strays are swept


def test_saving_leaves_no_thread_and_no_open_file_behind(tmp_path):
    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, fresh(), {}, {})
        checkpoints.wait()
        before = held()
        for step in range(3, 8):
            checkpoints.save(step, fresh(), {}, {}, score=0.1 * step)
        checkpoints.wait()
        files, threads = held()
        assert files < before[0] + 5 and threads < before[1] + 5, "one of each a save is a leak"


@pytest.mark.parametrize("then", [lambda b: b.save(0, fresh(), {}, {}), lambda b: b.restore(like(fresh(), on((1, 1, 1), 1)))])
def test_one_save_at_a_time_whatever_the_folder(tmp_path, then):
    """The reference's follows the run's own: two of Orbax's managers at once meet at barriers of the same name (several processes)."""
    with Checkpoints(tmp_path / "b") as b, Checkpoints(tmp_path / "a") as a:
        a.save(0, fresh(), {}, {})
        assert a._saving is not None
        then(b)
        assert a._saving is None and a.steps == [0]


def test_an_unwritable_workdir_says_so(tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(FileExistsError, match="checkpoints"):
        Checkpoints(tmp_path)


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path):
    """Files beyond 1 MB fail to be written, as on a full disk."""
    params = {"w": jax.random.normal(jax.random.key(0), (1_000_000,))}
    state = init_state(params, optax.sgd(1.0), jax.random.key(0))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {}, {})
        checkpoints.wait()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        try:
            with pytest.raises(Exception, match=r"(?i)file too large"):
                checkpoints.save(2, state, {}, {})
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        assert checkpoints.restore(state).step == 1
