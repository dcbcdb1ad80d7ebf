"""The shapes of a run's batches: for each row length one number of rows, whatever the episodes of a step are.

`pack` takes as few rows as the episodes of a step need, a power of two of micro-batches. A run rounds that up to what any step can
need, so that one program a row length is all that is ever compiled: the update skips empty micro-batches, they cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slca.learn.rows import bucket
from slca.types import ABSENT, Batch


def batch_shapes(config: Any, prompts: int, shards: int = 1, *, groups: bool = False) -> dict[int, int]:
    """Row length -> rows [B] that hold the rollouts of `prompts` prompts whatever their lengths, for each of `train.row_lengths`.

    shards: data-parallel devices that share the rows. groups: every group inside one micro-batch (records with `whole_groups`).
    """
    r, n = config.rollout, config.train
    longest, unit = r.max_prompt_tokens + r.max_response_tokens, n.micro_rows * shards

    def rows(length: int) -> int:
        if groups:
            return prompts * unit
        # First-fit opens a row only when no other has room, so every row but the last holds this many of the longest or more.
        a_row = max(1, length // longest) if n.pack else 1
        return -(-prompts * r.group // a_row)

    return {int(length): bucket(rows(length), unit) for length in sorted(n.row_lengths)}


def empty(rows: int, length: int, groups: bool = False, shared: bool = False) -> Batch:
    """A host batch without an episode: what it is passed to compiles, and changes nothing. groups, shared: with `Batch.group`, with
    `Batch.prefix`."""
    whole = {"tokens": 0, "positions": 0, "episode": 0, "segment": 0, "kind": ABSENT}
    real = {"loss_weight": 0.0, "advantage": 0.0, "old_logprob": np.nan, "ref_logprob": np.nan, "sampler_logprob": np.nan}
    fields: dict[str, Any] = {name: np.full((rows, length), value, np.int32) for name, value in whole.items()}
    fields |= {name: np.full((rows, length), value, np.float32) for name, value in real.items()}
    fields |= {name: np.zeros((rows, length), np.int32) for name, wanted in (("group", groups), ("prefix", shared)) if wanted}
    return Batch(**fields)


def widened(batch: Batch, shapes: Mapping[int, int], unit: int) -> Batch:
    """The host batch with empty micro-batches of `unit` rows behind its own, up to the rows of its length.

    A field that is None stays so. Raises ValueError for a batch of more rows, or of a length that is not in `shapes`.
    """
    rows, length = batch.tokens.shape
    if shapes.get(length, 0) < rows or shapes[length] % unit or rows % unit:
        raise ValueError(f"a batch of {rows} rows of {length} tokens in micro-batches of {unit}; this run's are {dict(shapes)}")
    if rows == shapes[length]:
        return batch
    blank = empty(shapes[length], length, batch.group is not None, batch.prefix is not None)

    def fit(own: Any, blank: Any) -> Any:
        if own is None:
            return None
        blank.reshape(unit, -1, length)[:, : rows // unit] = np.asarray(own).reshape(unit, -1, length)
        return blank

    return Batch(*map(fit, batch, blank))
