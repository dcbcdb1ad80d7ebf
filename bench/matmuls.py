"""What a compiled function spends on its own matrix products: found in its jaxpr, each timed alone at its own shape."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Product = tuple[tuple[int, ...], tuple[int, ...], Any, str, str, Any]  # shapes, dimension numbers, dtypes, preferred dtype


def products(function: Callable[..., Any], *args: Any) -> Counter[Product]:
    """How often each matrix product runs in a call: loops counted as often as they turn, of two branches the one with more."""
    return _walk(jax.make_jaxpr(function)(*args).jaxpr)


def _walk(jaxpr: Any) -> Counter[Product]:
    found: Counter[Product] = Counter()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            a, b = (v.aval for v in eqn.invars)
            p = eqn.params
            found[(a.shape, b.shape, p["dimension_numbers"], str(a.dtype), str(b.dtype), p["preferred_element_type"])] += 1
            continue
        if eqn.primitive.name == "cond":
            branches = [_walk(branch.jaxpr) for branch in eqn.params["branches"]]
            found += max(branches, key=flops)
            continue
        times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    for product, count in _walk(inner).items():
                        found[product] += count * times
    return found


def flops(found: Counter[Product]) -> float:
    """Multiplications and additions of all of them."""
    total = 0.0
    for (a, b, ((contracted, _), (batch, _)), *_), count in found.items():
        free = [n for i, n in enumerate(a) if i not in contracted and i not in batch]
        total += 2.0 * math.prod(free) * math.prod(b) * count  # the other side whole: free, contracted and batch dimensions
    return total


def seconds(product: Product, repeats: int = 8, rounds: int = 5) -> float:
    """Median seconds of one product alone, in a compiled loop over different inputs."""
    once = timer(product, repeats)
    return statistics.median(once() for _ in range(rounds))


def timer(product: Product, repeats: int = 8) -> Callable[[], float]:
    """Seconds of one product alone at each call: a compiled loop over different inputs, compiled here."""
    a, b, dimensions, a_type, b_type, preferred = product
    left = jnp.asarray(jax.random.normal(jax.random.key(0), (repeats, *a)), a_type)
    right = jnp.asarray(jax.random.normal(jax.random.key(1), b), b_type)

    def one(x: Any) -> Any:
        return lax.dot_general(x, right, dimensions, preferred_element_type=preferred)

    @jax.jit
    def loop(left: Any) -> Any:
        return lax.scan(lambda _, x: (one(x), None), jnp.zeros_like(jax.eval_shape(one, left[0])), left)[0]

    def once() -> float:
        began = time.perf_counter()
        jax.block_until_ready(loop(left))
        return (time.perf_counter() - began) / repeats

    once()
    return once


def product_timers(function: Callable[..., Any], *args: Any) -> list[tuple[Callable[[], float], int]]:
    """(timer, how often it runs in a call) of every matrix product of the function."""
    return [(timer(product), count) for product, count in products(function, *args).items()]
