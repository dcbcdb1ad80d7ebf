"""A reduced-depth run compiled for real TPU topologies, where libtpu is installed (extra [tpu]); no TPU is needed."""

import importlib.util
import re
import subprocess
import sys

import pytest

SMALL = (
    "--config.model.source=random --config.chat.tokenizer=tiny --config.model.layers=2 --config.model.width=512 --config.model.ff=1024 "
    "--config.model.heads=8 --config.model.kv_heads=4 --config.model.head_dim=128 --config.rollout.prompts=16 "
    "--config.train.row_lengths=(2_048,) --config.model.max_length=2_048 --config.rollout.max_prompt_tokens=1_024 "
    "--config.rollout.max_response_tokens=1_024 --config.rollout.max_turn_tokens=512 --config.rollout.prompt_buckets=(1_024,) "
    "--config.rollout.suffix_buckets=(256,) --config.rollout.slots=32"
)


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is missing (extra [tpu])")
@pytest.mark.parametrize("topology, mesh, kv_heads", [("v5p:2x2x2", "1x4x2", 4), ("v5e:2x4", "1x2x4", 2)])
def test_a_small_run_compiles_for_a_pod(topology, mesh, kv_heads):
    """Both meshes have two hosts; on the second each KV head is copied to two chips."""
    command = [sys.executable, "-m", "slca.aot", "--config=configs/7b.py", f"--topology={topology}", f"--mesh={mesh}"]
    command += [*SMALL.split(), f"--config.model.kv_heads={kv_heads}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    assert "2 hosts, each samples on its own 4 chips" in done.stdout
    for program in ("update", "prefill", "insert", "append", "decode"):
        assert f"\n{program}: " in done.stdout
    assert done.stdout.count(": fits") == done.stdout.count("compiled in") >= 5


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is missing (extra [tpu])")
def test_a_row_over_several_hosts_is_refused():
    command = [sys.executable, "-m", "slca.aot", "--config=configs/7b.py", "--topology=v5e:2x4", "--mesh=1x1x8"]
    done = subprocess.run([*command, *SMALL.split()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "slca.aot: mesh.tensor=8: does not divide the 4 device(s)" in done.stderr, done.stderr[
        -2000:
    ]


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is missing (extra [tpu])")
def test_a_topology_that_libtpu_does_not_know_is_2():
    command = [sys.executable, "-m", "slca.aot", "--config=configs/tiny.py", "--topology=v5p:9x9x9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "--topology=v5p:9x9x9" in done.stderr and "v5e:8x8" in done.stderr


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is missing (extra [tpu])")
def test_decoding_copies_no_cache_where_a_chip_has_several_kv_heads():
    """By hand: 256 rows of 2,048 tokens a chip, 2 KV heads of 128, 2 layers, keys and values in bfloat16 are 1 GiB."""
    command = [sys.executable, "-m", "slca.aot", "--config=configs/7b.py", "--topology=v5p:2x2x2", "--mesh=1x4x2"]
    command += [*SMALL.split(), "--slots=1024", "--programs=decode"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    found = re.search(r"arguments ([\d.]+) \+ temporaries ([\d.]+) \+", done.stdout)
    assert found and float(found[1]) > 1.0 and float(found[2]) < 0.25, done.stdout
