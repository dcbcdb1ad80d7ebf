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
    rise = min(round(warmup * steps), steps - 1) if 0 < warmup < 1 else int(warmup)
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


def optimizer(optim: Any, rate: optax.Schedule, axes: Any = None) -> optax.GradientTransformation:
    """The config's `optim` section as an optax transformation. Weight decay is decoupled, times the rate, on every parameter
    (as torch's AdamW in the paper's recipe).

    adafactor: factored second moments, no momentum, update clipped to RMS 1, without its relative step size.
    muon: stacked matrices orthogonalised layer by layer; embeddings, norms and biases by AdamW with Nesterov's momentum.
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
    if optim.name == "muon" and axes is not None:
        return muon(
            rate,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            adam_b1=optim.b1,
            adam_b2=optim.b2,
            adam_weight_decay=optim.weight_decay,
            muon_weight_dimension_numbers=matrices(axes),
        )
    raise ValueError(f"optim.name is {optim.name!r}, expected one of {OPTIMIZERS} (muon with the model's logical axes)")


def matrices(axes: Any) -> Any:
    """Which dimensions of each stacked parameter are a matrix's input and output; None = not a matrix.

    The model width (`embed`) is one side, everything else but the layers the other: q [L, D, H, h] maps D to H x h.
    """

    def sides(names: tuple[str | None, ...]) -> MuonDimensionNumbers | None:
        if names[0] != "layers" or "embed" not in names or len(names) < 3:
            return None
        width = names.index("embed")
        rest = tuple(n for n in range(1, len(names)) if n != width)
        return MuonDimensionNumbers((width,), rest) if width == 1 else MuonDimensionNumbers(rest, (width,))

    return jax.tree.map(sides, axes, is_leaf=lambda names: isinstance(names, tuple))
