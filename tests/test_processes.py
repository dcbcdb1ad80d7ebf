"""Several processes as one run: two over loopback (gloo) through the main program, late, failing and killed ones included."""

import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from slca import processes
from slca.learn.sharding import make_mesh, own_mesh
from slca.reinforce import everywhere, own_groups
from slca.report import metrics
from tests.programs import one_device
from tests.test_train import SMALL

# An entropy bonus, so that every update moves the parameters whatever the rewards of an untrained policy are.
FIELDS = SMALL | {
    "sft.steps": 2,
    "train.steps": 3,
    "loss.entropy_coef": 0.05,
    "optim.lr": 0.02,
    "optim.warmup": 0.0,
    "eval.tasks": 3,
    "train.mu": 1,
    "train.mini_batches": 1,
    "eval.every": 0,
    "rollout.prompt_buckets": "(192,)",
    "rollout.suffix_buckets": "(96,)",
    "train.row_lengths": "(512,)",
}
SHORT = {"rollout.tool_timeout": 5.0, "run.watchdog_seconds": 60.0}

# The main program, with a fault in one process.
PROGRAM = """
import os, sys, time
from absl import app
import slca.main
fault, rank = os.environ.get("FAULT", ""), int(os.environ.get("SLCA_PROCESS_ID", "0"))
if rank == 1 and fault == "late":
    import slca.reinforce
    roll = slca.reinforce.rollout
    def late(*args, **options):
        if options["step"] == 1:
            time.sleep(20)
        return roll(*args, **options)
    slca.reinforce.rollout = late
if rank == 1 and fault == "failing":
    import slca.rollout.engine
    def failing(*args):
        raise RuntimeError("every tool is down")
    slca.rollout.engine.machine.sampled = failing
if rank == 1 and fault == "stuck":
    import slca.reinforce
    slca.reinforce.annotate = lambda *args, **options: time.sleep(1000)
app.run(slca.main.main, flags_parser=slca.main.parse)
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Started(NamedTuple):
    process: subprocess.Popen
    out: Path


def launch(workdir, count, fault="", **fields):
    """The processes of a run, started; each writes to a file of its own."""
    folder = Path(tempfile.mkdtemp())
    flags = [f"--config.{name}={value}" for name, value in {**FIELDS, **fields}.items()]
    command = [sys.executable, "-c", PROGRAM, "--config=configs/tiny.py", f"--workdir={workdir}", *flags]
    port, started = free_port(), []
    for rank in range(count):
        several = {"SLCA_COORDINATOR": f"127.0.0.1:{port}", "SLCA_PROCESS_ID": str(rank), "SLCA_NUM_PROCESSES": str(count)}
        variables = one_device() | {"FAULT": fault} | (several if count > 1 else {})
        with open(folder / f"{rank}", "w") as out:
            process = subprocess.Popen(command, env=variables, stdout=out, stderr=subprocess.STDOUT)
        started.append(Started(process, folder / f"{rank}"))
    return started


def outcome(started, timeout=400):
    """(exit code, output) of each."""
    deadline = time.monotonic() + timeout
    try:
        codes = [process.wait(timeout=max(1.0, deadline - time.monotonic())) for process, _ in started]
    except subprocess.TimeoutExpired:
        pytest.fail("\n".join(f"process {i}: {out.read_text()[-3000:]}" for i, (_, out) in enumerate(started)))
    finally:
        for process, _ in started:
            process.kill()
    return [(code, out.read_text()) for code, (_, out) in zip(codes, started, strict=True)]


def finished(workdir, count, fault="", **fields):
    for code, text in outcome(launch(workdir, count, fault, **fields)):
        assert code == 0, text[-3000:]
    return metrics.read(workdir)


def wait_for_step(workdir, started, phase="rl", step=1):
    deadline = time.monotonic() + 300
    while not any(row["phase"] == phase and row["step"] == step for row in metrics.read(workdir)):
        assert all(process.poll() is None for process, _ in started) and time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("one")
    return finished(workdir, 1), json.loads((workdir / "results.json").read_text())["rows"]


def test_two_processes_are_one_run(one, tmp_path):  # contract 8, H3
    rows = finished(tmp_path, 2, **{"train.micro_rows": 1})
    assert [(row["phase"], row["step"]) for row in rows] == [(row["phase"], row["step"]) for row in one[0]]
    steady = ("loss", "grad_norm", "entropy", "logprob", "reward", "length", "end/", "tokens", "padding")
    for mine, theirs in zip(rows, one[0], strict=True):
        assert mine.keys() == theirs.keys()
        names = [name for name in mine if any(part in name for part in steady) and not name.startswith(("time/", "sys/"))]
        assert len(names) > {"sft": 2, "eval": 8, "rl": 40}[mine["phase"]]
        for name in names:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-6), name
    assert all(row["train/grad_norm"] > 0 for row in rows if row["phase"] == "rl")
    mine, theirs = json.loads((tmp_path / "results.json").read_text())["rows"], one[1]
    assert [row["name"] for row in mine] == [row["name"] for row in theirs]
    for a, b in zip(mine, theirs, strict=True):
        assert a["metrics"] == pytest.approx(b["metrics"], rel=1e-5)
    assert not list((tmp_path / ".pulse").iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["late", "failing"])
def test_a_late_or_failing_process_changes_no_step_count(tmp_path, fault):  # H1, H2
    rows = finished(tmp_path, 2, fault, **{"train.micro_rows": 1, "rollout.tool_timeout": 5.0, "run.watchdog_seconds": 300.0})
    assert [row["step"] for row in rows if row["phase"] == "rl"] == [1, 2, 3]
    if fault == "failing":
        assert all(row["rollout/end/dead"] == 0.5 and row["train/tokens"] > 0 for row in rows if row["phase"] == "rl")
    else:
        assert max(row["time/rollout"] for row in rows if row["phase"] == "rl") > 20


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_other_and_is_named(tmp_path, rank):  # H1
    started = launch(tmp_path, 2, **SHORT, **{"train.micro_rows": 1, "train.steps": 100_000})
    wait_for_step(tmp_path, started)
    started[rank].process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    code, text = outcome([started[1 - rank]])[0]
    assert code != 0
    seconds = time.monotonic() - killed
    print(f"process {rank} killed: the other ended after {seconds:.1f} s with {code}, run.watchdog_seconds=60")
    assert seconds < 60.0 + 20.0  # the watchdog looks every few seconds
    # Where process 0 is gone, JAX itself ends the others at once, most times before they can say more than it does.
    named = rf"(lost|no sign of life of) process {rank} on " + ("|the leader task was preempted/died" if rank == 0 else "")
    assert re.search(named, text), text[-3000:]


@pytest.mark.nightly
def test_a_stuck_process_ends_all_with_its_phase(tmp_path):  # H1
    results = outcome(launch(tmp_path, 2, "stuck", **SHORT, **{"train.micro_rows": 1}))
    assert all(code != 0 for code, _ in results)
    assert "no movement for" in results[1][1] and "'reward'" in results[1][1]
    assert "in annotate" in results[1][1] or "<lambda>" in results[1][1]  # the stacks of its threads
    assert (tmp_path / "watchdog-1.txt").read_text().startswith("watchdog: process 1 on ")


@pytest.mark.nightly
def test_a_signal_to_one_process_saves_in_all(tmp_path):
    started = launch(tmp_path, 2, **{"train.micro_rows": 1, "train.steps": 100_000})
    wait_for_step(tmp_path, started)
    started[1].process.send_signal(signal.SIGTERM)
    results = outcome(started)
    assert [code for code, _ in results] == [0, 0], results[0][1][-2000:]
    assert "the same command continues" in results[0][1]


@pytest.mark.nightly
def test_one_process_continues_what_two_began(one, tmp_path):
    finished(tmp_path, 2, **{"train.micro_rows": 1, "train.steps": 2})
    flags = [f"--config.{name}={value}" for name, value in FIELDS.items()]
    command = [
        sys.executable,
        "-m",
        "slca.main",
        "--config=configs/tiny.py",
        f"--workdir={tmp_path}",
        "--resume",
        "--allow-config-change",
    ]
    done = subprocess.run([*command, *flags], env=one_device(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    last, whole = ([row for row in rows if row["phase"] == "rl"][-1] for rows in (metrics.read(tmp_path), one[0]))
    assert last["step"] == 3 and last["train/loss"] == pytest.approx(whole["train/loss"], rel=1e-4, abs=1e-5)
    assert last["rollout/length/policy"] == whole["rollout/length/policy"]


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"rollout.prompts": 3, "eval.splits": "('nope',)"}, "rollout.prompts=3"),
        ({"mesh.tensor": 2}, "mesh.tensor=2: does not divide the 1 device(s) of a process, of which there are 2"),
    ],
)
def test_what_one_process_refuses_all_refuse(tmp_path, fields, says):
    results = outcome(launch(tmp_path, 2, **fields), timeout=120)
    assert [code for code, _ in results] == [2, 2]
    assert all(says in text and "Traceback" not in text for _, text in results)
    assert not (tmp_path / "metrics.jsonl").exists()  # before anything is loaded


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "1"}, False),
        ({"SLURM_NTASKS": "4"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2"}, True),
        ({"TPU_PROCESS_ADDRESSES": "10.0.0.1:8476,10.0.0.2:8476"}, True),
        ({"MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1"}, True),
    ],
)
def test_clusters_are_found_by_their_variables(environ, expected):  # H4
    assert bool(processes.clustered(environ)) is expected


def joining(monkeypatch, join, **environ):
    """What `start()` says with these variables and no others, and `join` in the place of jax.distributed.initialize."""
    for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "SLCA_DISTRIBUTED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes.jax.distributed, "initialize", join)
    return processes.start()


def test_a_pod_whose_variables_say_nothing_is_joined_on_request(monkeypatch):
    """A TPU VM knows its neighbours from the metadata server, which only a run that is asked to may look for."""
    joined = []
    assert not joining(monkeypatch, lambda: joined.append(1)) and not joining(
        monkeypatch, lambda: joined.append(1), SLCA_DISTRIBUTED=""
    )
    assert not joined
    assert joining(monkeypatch, lambda: joined.append(1), SLCA_DISTRIBUTED="1") and joined == [1]
    assert not joining(monkeypatch, lambda: joined.append(2), SLCA_DISTRIBUTED="0", SLURM_NTASKS="4") and joined == [1]


@pytest.mark.parametrize(
    "error", [ValueError("coordinator_address should be defined."), OSError("no route"), RuntimeError("x")]
)
@pytest.mark.parametrize("name, value", [("SLCA_DISTRIBUTED", "1"), ("SLURM_NTASKS", "4")])
def test_processes_that_are_not_found_are_refused_with_what_to_do(monkeypatch, error, name, value):
    def fail():
        raise error

    with pytest.raises(processes.Refused, match=rf"{name}={value}: .*{error}.*--coordinator.*SLCA_DISTRIBUTED=0"):
        joining(monkeypatch, fail, **{name: value})


def test_a_switch_that_is_neither_is_refused(monkeypatch):
    with pytest.raises(processes.Refused, match=r"SLCA_DISTRIBUTED='yes': 1 .*, or 0"):
        joining(monkeypatch, lambda: pytest.fail("joined"), SLCA_DISTRIBUTED="yes")


def test_the_switch_finds_nothing_where_no_cluster_is():
    """With JAX's own detection: no network is asked, and the command ends with one line."""
    known = {k: v for k, v in one_device().items() if not k.startswith(("SLURM_", "OMPI_", "TPU_", "KUBERNETES_", "SLCA_"))}
    command = [sys.executable, "-m", "slca.main", "--config=configs/tiny.py"]
    done = subprocess.run(command, env=known | {"SLCA_DISTRIBUTED": "1"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "slca.main: SLCA_DISTRIBUTED=1: " in done.stderr and "Traceback" not in done.stderr


def test_half_given_numbers_are_refused(monkeypatch):
    with pytest.raises(processes.Refused, match="--process_id, --num_processes: needed as well"):
        processes.start("127.0.0.1:1")
    with pytest.raises(processes.Refused, match="--process_id=2: counts from 0"):
        processes.start("127.0.0.1:1", 2, 2)
    for address in ("nonsense", ":1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:x"):
        with pytest.raises(processes.Refused, match="expected HOST:PORT of process 0"):
            processes.start(address, 0, 2)
    monkeypatch.setenv("SLCA_PROCESS_ID", "x")
    with pytest.raises(processes.Refused, match=r"SLCA_PROCESS_ID.*='x': a whole number"):
        processes.start("127.0.0.1:1", None, 2)
    monkeypatch.delenv("SLCA_PROCESS_ID")
    assert not processes.start("127.0.0.1:1", 0, 1)  # one process needs nobody
    assert not processes.start()


def test_joining_twice_is_no_error(monkeypatch):  # H4
    monkeypatch.setattr(processes.jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(processes.jax.distributed, "initialize", lambda *_: pytest.fail("a second time"))
    assert processes.start("127.0.0.1:1", 0, 2) and processes.start()


def as_process(monkeypatch, index, count):
    monkeypatch.setattr(processes, "index", lambda: index)
    monkeypatch.setattr(processes, "count", lambda: count)


def test_every_mini_batch_has_the_same_prompts_for_any_number_of_processes(monkeypatch):
    for count in (1, 2, 4):
        found = []
        for index in range(count):
            as_process(monkeypatch, index, count)
            found.append(np.array_split(own_groups(16, 2), 2))
        for k, whole in enumerate(np.array_split(np.arange(16), 2)):
            assert sorted(g for own in found for g in own[k]) == whole.tolist()


ENGINE = {"engine/tokens_decoded": 30.0, "engine/slot_steps": 40.0, "engine/occupancy": 0.75}


def test_metrics_of_all_processes(monkeypatch):
    theirs = [{"engine/rounds": 3.0, "time/rollout": 9.0, "resample/rounds": 2.0}, {"rollout/a": [1.0, 4.0]}]
    monkeypatch.setattr(processes, "gather_json", lambda mine: [mine, theirs])
    values = {"engine/rounds": 2.0, "time/rollout": 5.0, "resample/rounds": 1.0, "judge/ok": 1.0}
    found = everywhere(values | ENGINE, {"rollout/a": (2.0, 2.0)})
    assert {name: value for name, value in found.items() if name not in ENGINE and not name.startswith("sgls/")} == {
        "rollout/a": 0.5, "engine/rounds": 5.0, "time/rollout": 9.0, "resample/rounds": 2.0, "judge/ok": 1.0,
    }  # fmt: skip


def test_rates_of_all_processes_are_those_of_their_counts(monkeypatch):
    """10 of 100 calls answered from the cache here, none of no calls there: a tenth, not a twentieth. 30 of 40 slot steps and 5 of 10."""
    here = ENGINE | {
        "sgls/calls": 100.0,
        "sgls/source/cache": 10.0,
        "sgls/cache_hit_rate": 0.1,
        "sgls/tokens": 50.0,
        "sgls/tokens_per_call": 0.5,
    }
    there = {"sgls/calls": 0.0, "sgls/cache_hit_rate": 0.0, "engine/tokens_decoded": 5.0, "engine/slot_steps": 10.0}
    monkeypatch.setattr(processes, "gather_json", lambda mine: [mine, [there, {}]])
    found = everywhere(here, {})
    assert found["sgls/cache_hit_rate"] == 0.1 and found["sgls/tokens_per_call"] == 0.5 and found["sgls/calls"] == 100.0
    assert found["engine/occupancy"] == 35 / 50


def test_own_parts_cover_everything(monkeypatch):
    for n in (0, 1, 5, 8):
        parts = []
        for index in range(3):
            as_process(monkeypatch, index, 3)
            parts.append(processes.own(range(n)))
        assert [i for part in parts for i in part] == list(range(n)) and max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_mesh_of_one_process_splits_as_the_whole_does(config):
    config.mesh.update(data=1, fsdp=-1, tensor=2)
    here = own_mesh(make_mesh(config.mesh))
    assert dict(here.shape) == {"data": 1, "fsdp": 4, "tensor": 2}
