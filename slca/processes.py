"""Several processes, one run: starting them, and the few things they must agree on.

Every process runs the same programs over all devices. Between two updates it works alone: it rolls out, scores and packs its own
prompts on its own devices, and only counts (shapes, divisors, whether to stop) and metrics are exchanged. With one process,
nothing here touches a device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")


class Refused(ValueError):
    """A process number, a count or an address that makes no sense."""


def clustered(environ: Mapping[str, str]) -> str:
    """The variable that says that this is one process among several, as SLURM, Open MPI and GKE set it or SLCA_DISTRIBUTED=1 asks for
    it; "" = none does. `jax.distributed.initialize` finds the others by itself.

    A TPU VM sets no variable: its workers are found through the metadata server, which no one asks who was not told to.
    SLCA_DISTRIBUTED=0 stays alone, whatever the platform says. Raises Refused for another value.
    """
    if (asked := environ.get("SLCA_DISTRIBUTED", "")) not in ("", "0", "1"):
        raise Refused(f"SLCA_DISTRIBUTED={asked!r}: 1 (find the other processes on this platform), or 0 (run alone)")
    if asked:
        return "SLCA_DISTRIBUTED" if asked == "1" else ""
    several = [
        name for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE") if environ.get(name, "").isdigit() and int(environ[name]) > 1
    ]
    several += [name for name in ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES") if "," in environ.get(name, "")]
    several += [name for name in ("MEGASCALE_COORDINATOR_ADDRESS",) if environ.get(name)]
    return several[0] if several else ""


def start(coordinator: str | None = None, process_id: int | None = None, num_processes: int | None = None) -> bool:
    """Join the other processes of the run, if there are any; call it before anything else of JAX. Returns whether there are.

    coordinator: host:port of process 0. All three are given by hand, or by SLCA_COORDINATOR, SLCA_PROCESS_ID and
    SLCA_NUM_PROCESSES, or found where `clustered` says that there are others. Raises Refused when they make no sense or none are found.
    """
    given: dict[str, Any] = {
        "coordinator": coordinator or os.environ.get("SLCA_COORDINATOR"),
        "process_id": process_id if process_id is not None else os.environ.get("SLCA_PROCESS_ID"),
        "num_processes": num_processes if num_processes is not None else os.environ.get("SLCA_NUM_PROCESSES"),
    }
    if jax.distributed.is_initialized():  # a second call is an error (EasyDeL, simply: H4)
        return True
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        if name := clustered(os.environ):
            _find(f"{name}={os.environ[name]}")
        return bool(name)
    if missing:
        raise Refused(f"--{', --'.join(missing)}: needed as well, to run as one of several processes")
    address, me, n = str(given["coordinator"]), _whole("process_id", given), _whole("num_processes", given)
    if not 0 <= me < n:
        raise Refused(f"--process_id={me}: counts from 0 to --num_processes={n} minus 1")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise Refused(f"--coordinator={address}: expected HOST:PORT of process 0, for instance 10.0.0.1:1234")
    if n == 1:
        return False
    jax.distributed.initialize(address, n, me)
    return True


def _find(why: str) -> None:
    """Join by JAX's own look at the platform. why: what says that there are others."""
    try:
        jax.distributed.initialize()
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise Refused(
            f"{why}: the other processes were not found or not reached ({type(error).__name__}: {error}); name them with --coordinator, "
            "--process_id and --num_processes, or run alone with SLCA_DISTRIBUTED=0"
        ) from error


def _whole(name: str, given: Mapping[str, Any]) -> int:
    try:
        return int(given[name])
    except ValueError:
        raise Refused(f"--{name} (SLCA_{name.upper()})={given[name]!r}: a whole number is needed") from None


def count() -> int:
    """Processes of the run."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
    """This process among them, from 0. Process 0 writes the files."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def own(items: Sequence[T]) -> Sequence[T]:
    """This process's part of what all of them hold: equal contiguous parts, in order, their sizes equal to within one."""
    n = len(items)
    return items[n * index() // count() : n * (index() + 1) // count()]


def gather(counts: np.ndarray) -> np.ndarray:
    """[K] integers of this process -> those of all, [processes, K]. Every process calls it, or all wait."""
    return counts[None] if count() == 1 else np.asarray(multihost_utils.process_allgather(np.asarray(counts)))


def gather_json(value: Any) -> list[Any]:
    """A JSON-able value of each process, in order. Not-a-number and infinities pass."""
    if count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = gather(np.asarray([len(text)]))[:, 0]
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(text)] = text
    found = gather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(found, sizes, strict=True)]


def anywhere(flag: bool) -> bool:
    """Whether the flag is set in any process."""
    return bool(gather(np.asarray([int(flag)])).any())
