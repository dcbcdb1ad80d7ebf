"""What fits a device, by estimate and then by trying: full fine-tuning before adapters, large micro-batches before small ones."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import jax

from slca.policy import transformer
from slca.policy.config import Lora

GIB = 2**30
RANK = 16  # of adapters
RESERVE = 0.85  # share of the device's memory that the estimate may fill


def parameters(model: Any) -> tuple[int, int]:
    """(all of them, those of the matrices a token is multiplied with)."""
    shapes = transformer.param_shapes(model)
    total = sum(math.prod(shape) for shape in jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, tuple)))
    return total, total - (0 if model.tied else model.vocab * model.width)


def adapted(model: Any, rank: int) -> Any:
    return dataclasses.replace(model, lora=Lora(rank, 2.0 * rank)) if rank else model


def needed(model: Any, rows: int, row: int, sampling: float = 0.0) -> float:
    """Bytes of an update by estimate: 16 a trained parameter (master, two moments, gradient), 4 a frozen one, what the backward
    pass keeps of each layer, one layer's inner activations; and what the sampler holds."""
    states = (4 if model.lora else 16) * parameters(model)[0]
    kept = rows * row * 2 * (model.layers * model.width + 6 * (model.ff + model.width))
    return states + kept + sampling + 2 * GIB


def variants(model: Any, micro_rows: tuple[int, ...], room: float, row: int, sampling: float = 0.0) -> list[tuple[int, int]]:
    """(rank of adapters, micro-batch rows) that fit by the estimate: full fine-tuning before adapters, large before small."""
    tried = [(rank, rows) for rank in (0, RANK) for rows in micro_rows]
    return [(rank, rows) for rank, rows in tried if needed(adapted(model, rank), rows, row, sampling) < RESERVE * room]


def first_that_fits(choices: list[tuple[int, int]], run: Callable[[int, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """The first variant that runs; one that is out of memory gives way to the next."""
    refused = "nothing fits by the estimate"
    for rank, rows in choices:
        how = f"{f'LoRA, rank {rank}' if rank else 'AdamW, all parameters'}, micro-batch of {rows}"
        try:
            return [{"what": how} | run(rank, rows)]
        except Exception as error:  # jaxlib's own type says no more than its text
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            refused = f"{how}: out of memory"
            print(refused, file=sys.stderr)
    return [{"what": "nothing", "error": refused}]
