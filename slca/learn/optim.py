"""Optimizers and learning-rate schedules by name. Gradient clipping lives in the update, which needs the norm anyway."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon

OPTIMIZERS = ("adamw", "adafactor", "muon")
SCHEDULES = ("constant", "cosine", "linear")


def schedule(name: str, lr: float, steps: int, warmup: float = 0) -> optax.Schedule:
    """Optimiser step -> learning rate, f32.

    Linear rise from 0 over `warmup` steps (a number below 1 is a share of `steps`), then constant, or cosine or linear to 0 at `steps`.
    Sized in optimiser steps of this run (maxtext#4029 warmed up for 15,000 steps of a 500-step run).
    Raises ValueError on an unknown name or a warmup that leaves nothing.
    """
    rise = round(warmup * steps) if 0 < warmup < 1 else int(warmup)
    if steps < 1 or rise >= max(steps, 1):
        raise ValueError(f"a warmup of {rise} steps leaves nothing of the {steps} optimiser steps of this run")
    if name == "constant":
        after = optax.constant_schedule(lr)
    elif name == "cosine":
        after = optax.cosine_decay_schedule(lr, steps - rise)
    elif name == "linear":
        after = optax.linear_schedule(lr, 0.0, steps - rise)
    else:
        raise ValueError(f"schedule is {name!r}, expected one of {SCHEDULES}")
    joined = optax.join_schedules([optax.linear_schedule(0.0, lr, rise), after], [rise]) if rise else after
    return lambda count: jnp.asarray(joined(count), jnp.float32)


def optimizer(optim: Any, rate: optax.Schedule) -> optax.GradientTransformation:
    """The config's `optim` section as an optax transformation. Weight decay is decoupled, times the rate, on every parameter
    (as torch's AdamW in the paper's recipe).

    adafactor: factored second moments, no momentum, update clipped to RMS 1, without its relative step size.
    muon: stacked matrices orthogonalised layer by layer; embeddings, norms and biases by AdamW.
    """
    if optim.name == "adamw":
        return optax.adamw(rate, b1=optim.b1, b2=optim.b2, eps=optim.eps, weight_decay=optim.weight_decay)
    if optim.name == "adafactor":
        return optax.chain(
            optax.scale_by_factored_rms(),
            optax.clip_by_block_rms(1.0),
            optax.add_decayed_weights(optim.weight_decay),
            optax.scale_by_learning_rate(rate),
        )
    if optim.name == "muon":
        return muon(
            rate,
            weight_decay=optim.weight_decay,
            adam_b1=optim.b1,
            adam_b2=optim.b2,
            adam_weight_decay=optim.weight_decay,
            muon_weight_dimension_numbers=_stacked_matrices,
        )
    raise ValueError(f"optim.name is {optim.name!r}, expected one of {OPTIMIZERS}")


def _stacked_matrices(params: Any) -> Any:
    """Which axes of a stacked block weight are the matrix: [L, in, out], [L, D, H, h] (q, k, v) or [L, H, h, D] (o)."""

    def axes(path: Any, leaf: Any) -> MuonDimensionNumbers | None:
        name = str(getattr(path[-1], "key", path[-1]))
        if leaf.ndim == 4:
            return MuonDimensionNumbers((1, 2), 3) if name == "o" else MuonDimensionNumbers(1, (2, 3))
        return MuonDimensionNumbers(1, 2) if leaf.ndim == 3 and not name.endswith(("bias", "norm")) else None

    return jax.tree_util.tree_map_with_path(axes, params)
