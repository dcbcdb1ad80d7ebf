"""TPU topologies by libtpu's names, their chips' published speeds, and the devices to compile for."""

from __future__ import annotations

import importlib.util
import os
from typing import Any, NamedTuple

import jax

GIB = 2**30
MOST_PARTS = 4096  # of a CPU that compiles for a machine of many


class Chip(NamedTuple):
    """One accelerator chip. hbm: bytes that the compiler lets a program use; flops: bf16 a second; memory, ici: bytes a second
    of HBM, and of all links to other chips together, one way. 0 = not known."""

    name: str
    hbm: float
    flops: float
    memory: float
    ici: float


# By `device_kind`. Speeds: Google Cloud's pages on each version; hbm: the limit in the compiler's own out-of-memory message. Versions
# whose devices are the cores of a chip (v4, 7x) are left out.
CHIPS = {
    "TPU v5 lite": Chip("v5e", 15.75 * GIB, 197e12, 0.819e12, 200e9),
    "TPU v5": Chip("v5p", 95.74 * GIB, 459e12, 2.765e12, 600e9),
    "TPU v6 lite": Chip("v6e", 31.25 * GIB, 918e12, 1.640e12, 400e9),
}


class TopologyError(ValueError):
    """A topology that cannot be compiled for here; the message says what to do."""


def prepare(topology: str) -> None:
    """Settings that must stand before JAX starts: the CPU alone (in as many parts as `cpu:N` asks for), libtpu beside other processes."""
    jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # or it asks a cloud's metadata server what machine this is
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # nothing here takes a TPU
    number = topology.removeprefix("cpu:")
    if number != topology and number.isdecimal() and 0 < int(number) <= MOST_PARTS:
        jax.config.update("jax_num_cpu_devices", int(number))


class Target(NamedTuple):
    """Devices of a topology, of one of its hosts by itself, the number of hosts, and the kind of chip."""

    devices: list[Any]
    host: list[Any]
    hosts: int
    chip: Chip


def target(topology: str) -> Target:
    """What a topology such as `v5p:4x4x4` (needs no TPU) or `cpu:8` (this host's CPU in 8 parts) stands for.

    A host's programs are compiled for its chips as a topology of their own, v5e:2x2 for v5e:8x8: for a part of a larger v5e or
    v6e slice libtpu compiles nothing.

    Raises TopologyError for an unknown name, a missing libtpu, or more CPU devices than JAX was started with.
    """
    if topology.startswith("cpu:"):
        return _cpu(topology)
    if importlib.util.find_spec("libtpu") is None:
        raise TopologyError(f"--topology={topology} needs libtpu: pip install -e '.[tpu]', or use --topology=cpu:8")
    from jax.experimental import topologies

    try:
        found = list(topologies.get_topology_desc(topology, "tpu").devices)
        hosts = len({device.process_index for device in found})
        version, _, axes = topology.partition(":")
        alone = f"{version}:2x2{'x1' if axes.count('x') == 2 else ''}"
        host = list(topologies.get_topology_desc(alone, "tpu").devices) if hosts > 1 else found
    except Exception as error:  # jax raises what libtpu says, under several types
        text = " ".join(str(error).split())
        raise TopologyError(
            f"--topology={topology}: {text}. Known forms: v5e:8x8, v5p:4x4x4, v6e:8x8 (chips along each axis), cpu:8"
        ) from error
    kind = found[0].device_kind
    if kind not in CHIPS:
        raise TopologyError(f"--topology={topology}: no figures for {kind!r} chips; known are {', '.join(CHIPS)}")
    return Target(found, host, hosts, CHIPS[kind])


def _cpu(topology: str) -> Target:
    number = topology.removeprefix("cpu:")
    if not number.isdecimal() or not 0 < int(number) <= MOST_PARTS:
        raise TopologyError(f"--topology={topology}: expected cpu:N with N devices (1 to {MOST_PARTS}), for instance cpu:8")
    found = jax.devices("cpu")
    if len(found) < int(number):
        raise TopologyError(f"--topology={topology}: JAX was started with {len(found)} CPU devices (jax_num_cpu_devices)")
    found = found[: int(number)]
    return Target(found, found, 1, Chip("cpu", 0.0, 0.0, 0.0, 0.0))
