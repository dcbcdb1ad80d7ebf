"""Matrix-product FLOPs of a traced program, counted from its jaxpr: 2 for every multiply and add, loop bodies times their trips.

Counted are the products of the program as written, recomputation of the backward pass included, over all chips. Element-wise
work, a few per cent of a transformer's, is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def count(jaxpr: Any, unknown_trips: int = 1) -> float:
    """FLOPs of one call of a (closed) jaxpr over all devices.

    scan: body x length; while: body x `unknown_trips`; cond: its costliest branch; shard_map: body x devices it is split over;
    pallas_call: kernel x grid, of splash attention the blocks that causality leaves.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_equation(eqn, unknown_trips) for eqn in jaxpr.eqns)


def _equation(eqn: Any, trips: int) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        depth = math.prod(eqn.invars[0].aval.shape[d] for d in contracted)
        return 2.0 * math.prod(eqn.outvars[0].aval.shape) * depth
    if name == "scan":
        return params["length"] * count(params["jaxpr"], trips)
    if name == "while":
        return trips * (count(params["body_jaxpr"], trips) + count(params["cond_jaxpr"], trips))
    if name == "cond":
        return max(count(branch, trips) for branch in params["branches"])
    if name == "pallas_call":
        return _kernel(eqn, trips)
    inner = sum(count(jaxpr, trips) for jaxpr in _jaxprs(params))
    return inner * _devices(params) if name == "shard_map" else inner


def _jaxprs(params: Any) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                yield item


def _devices(params: Any) -> int:
    """Devices that a shard_map splits its body over: its manual axes."""
    mesh = params["mesh"]
    manual = next((params[name] for name in ("newly_manual_axes", "manual_axes") if name in params), mesh.axis_names)
    return math.prod(mesh.shape[axis] for axis in manual)


def _kernel(eqn: Any, trips: int) -> float:
    grid = [size for size in eqn.params["grid_mapping"].grid if isinstance(size, int)]
    dense = math.prod(grid) * count(eqn.params["jaxpr"], trips)
    if "splash" not in str(eqn.params.get("name_and_src_info", eqn.params.get("name", ""))):
        return dense
    # The grid has an axis of heads and visits every pair of a query and a key block, n x n of the same size; the n (n + 1) / 2
    # at or under the diagonal are computed.
    blocks = max(grid[-3:], key=grid[-3:].count)
    return dense * (blocks + 1) / (2 * blocks)
