"""What a run costs the machine: memory, compilations, tokens a second, share of the hardware's arithmetic.

sys/rss, sys/rss_max    resident memory of this process now and at its peak, bytes
sys/hbm_max             peak of accelerator memory, the fullest local device, bytes (where the device tells)
sys/compiles            programs of the sampler; sys/compiles_all: everything compiled by this process, eager operations included
sys/tokens_sampled, sys/tokens_trained   tokens a second of rollout and of update, all devices
sys/mfu                 arithmetic of the update (6 x parameters x tokens, attention apart) over the peak of its devices
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

import jax
from jax import monitoring

from slca.aot.chips import CHIPS

# Peak of dense bf16 arithmetic, FLOP/s a device, by the makers' data sheets; the first name found in the device kind counts.
PEAKS = (
    {"TPU v5e": CHIPS["TPU v5 lite"].flops, "TPU v6e": CHIPS["TPU v6 lite"].flops}
    | {kind: chip.flops for kind, chip in CHIPS.items()}
    | {"TPU v4": 275e12, "A100": 312e12, "H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12}
)

_compiled = [0]


def _count(event: str, duration_secs: float, **_: str | int) -> None:
    _compiled[0] += "backend_compile" in event


monitoring.register_event_duration_secs_listener(_count)


def memory() -> dict[str, float]:
    """sys/rss, sys/rss_max and, where the devices tell, sys/hbm_max."""
    unit = 1 if sys.platform == "darwin" else 1024
    found = {"sys/rss_max": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)}
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            found["sys/rss"] = float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    peaks = [_peak(device) for device in jax.local_devices()]
    return found | ({"sys/hbm_max": max(peaks)} if any(peaks) else {})


def _peak(device: Any) -> float:
    """Peak of its memory, bytes; 0 where the device does not tell (a CPU)."""
    try:
        return float((device.memory_stats() or {}).get("peak_bytes_in_use", 0))
    except (NotImplementedError, RuntimeError):  # plugins differ in how they say that they do not know
        return 0.0


def trim() -> bool:
    """Give memory that was freed back to the system; whether there was any to give, False where the C library has no such call.

    glibc keeps what compilations and big temporaries leave between longer-lived pieces: resident memory would creep up for
    hundreds of steps.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):
        return False


def compiles() -> float:
    """Programs compiled, or taken from the cache on disk, since the start of this process."""
    return float(_compiled[0])


def speed(values: Mapping[str, float], parameters: int) -> dict[str, float]:
    """Tokens a second and MFU of an RL step from its metrics and the size of the policy."""
    found = {}
    if values.get("time/rollout"):
        found["sys/tokens_sampled"] = values.get("engine/tokens_decoded", 0.0) / values["time/rollout"]
    if values.get("time/update"):
        found["sys/tokens_trained"] = values.get("train/tokens", 0.0) / values["time/update"]
        kind = jax.devices()[0].device_kind
        peak = next((flops for name, flops in PEAKS.items() if name in kind), None)
        if peak:
            found["sys/mfu"] = 6.0 * parameters * found["sys/tokens_trained"] / (peak * jax.device_count())
    return found
