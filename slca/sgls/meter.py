"""Counters of a simulator: what was asked, what came back, how long it took."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Mapping

from slca.types import OBSERVATION_STATUS, Observation

WINDOW = 4096  # latest calls that the latency quantiles speak of
RATES = {  # name -> (count, of which)
    "unknown_tool_rate": ("status/unknown_tool", "calls"),
    "invalid_arguments_rate": ("status/invalid_arguments", "calls"),
    "cache_hit_rate": ("source/cache", "calls"),
    "replay_hit_rate": ("source/replay", "calls"),
    "invalid_response_rate": ("invalid", "replies"),
    "tokens_per_call": ("tokens", "calls"),
}


def rates(counts: Mapping[str, float]) -> dict[str, float]:
    """The rates of counts, those of one simulator or the sums over several; 0 of nothing is 0."""
    return {name: counts.get(part, 0) / max(1, counts.get(whole, 0)) for name, (part, whole) in RATES.items()}


class Meter:
    """Thread-safe counts over observations since the start (or the last `reset`)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        with self._lock:
            self._counts: Counter[str] = Counter()
            self._declared: list[float] = []
            self._seconds: deque[float] = deque(maxlen=WINDOW)

    def observe(self, observation: Observation, seconds: float) -> None:
        source = observation.provenance.get("source", "")
        with self._lock:
            self._seconds.append(seconds)
            self._counts["calls"] += 1
            self._counts[f"status/{observation.status}"] += 1
            self._counts[f"source/{source}"] += 1
            for name in ("replies", "tokens", "prompt_tokens", "regenerations", "invalid"):
                if amount := observation.cost.get(name):
                    self._counts[name] += int(amount)
            self._declared.append(observation.cost.get("declared", 0.0))
            for name in ("fault", "error"):
                if kind := observation.provenance.get(name):
                    self._counts[f"{name}/{kind}"] += 1

    def values(self) -> dict[str, float]:
        """Counts by name; their `rates`; under `time/`, latency in seconds over the last WINDOW calls."""
        with self._lock:
            counts, seconds, declared = Counter(self._counts), sorted(self._seconds), math.fsum(self._declared)
        values = {f"status/{status}": 0.0 for status in OBSERVATION_STATUS}
        values |= {name: float(count) for name, count in sorted(counts.items())}
        values["calls"] = float(counts["calls"])
        values["declared_cost"] = declared
        values |= rates(counts)
        for name, share in (("p50", 0.50), ("p95", 0.95)):
            values[f"time/simulate_{name}"] = seconds[min(len(seconds) - 1, int(share * len(seconds)))] if seconds else 0.0
        return values
