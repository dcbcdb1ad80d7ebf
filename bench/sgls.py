"""Simulated calls a second on real API schemas, and what each step of a call costs.

    pip install 'slca[botocore]' && python -m bench.sgls        # about half a minute on one core

One thread, over 1,000 botocore operations with a valid and an invalid call each: the scripted backend without and with cache
hits, refusals, and the on-disk store. CPU seconds and wall seconds (they differ where the machine is shared).
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from slca.sgls.simulator import Simulator
from slca.tasks import aws
from slca.tasks.schema import ToolSet
from slca.tasks.values import argument
from slca.types import Context, ToolCall

OPERATIONS = 1000
REPEATS = 5


def rate(simulate: Callable[[ToolCall, Context], object], calls: list[ToolCall], groups: list[str]) -> tuple[float, float]:
    """Calls a second of CPU and of wall time, medians over `groups`."""
    found = []
    for group in groups:
        cpu, wall = time.process_time(), time.perf_counter()
        for call in calls:
            simulate(call, Context(group))
        found.append((len(calls) / (time.process_time() - cpu), len(calls) / (time.perf_counter() - wall)))
    found.sort()
    return found[len(found) // 2]


def main() -> None:
    toolset = ToolSet.load(aws.botocore(operations=50))
    rng = random.Random(0)
    tools = list(toolset.tools.values())[:OPERATIONS]
    valid = [ToolCall(tool.name, argument(tool.parameters, rng)) for tool in tools]
    invalid = [ToolCall(call.name, {name: [[]] for name in call.arguments} or {"x": float("nan")}) for call in valid]
    groups = [f"group {i}" for i in range(REPEATS)]
    plain, cached = Simulator(cache="none"), Simulator()
    with tempfile.TemporaryDirectory() as folder:
        stored = Simulator(store=str(Path(folder) / "store.db"))
        rows = {
            "scripted": lambda: rate(lambda call, context: plain.simulate(call, toolset, context), valid, groups),
            "scripted, first time in a cache": lambda: rate(
                lambda c, context: cached.simulate(c, toolset, context), valid, groups
            ),
            "cache hit": lambda: rate(lambda call, _: cached.simulate(call, toolset, Context(groups[0])), valid, groups),
            "refused": lambda: rate(lambda c, context: plain.simulate(c, toolset, context), invalid, groups),
            "scripted, written to a store": lambda: rate(
                lambda c, context: stored.simulate(c, toolset, context), valid, groups[:2]
            ),
        }
        for call in valid:  # warm-up: schemas compiled, meanings of names cached
            plain.simulate(call, toolset, Context("warm-up"))
        print(f"{len(valid)} operations, one thread{'':20}calls/CPU s    calls/s")
        for name, measure in rows.items():
            cpu, wall = measure()
            print(f"{name:44}{cpu:12,.0f}{wall:12,.0f}")
        stored.close()


if __name__ == "__main__":
    main()
