"""How far the trainer's log-probs of a step lie from the sampler's, token by token: for the viewer and its curves.

The update's own metrics give the mean; where a gap sits (which tokens, which segment) needs every token, so this is one more
forward pass, made only on steps whose episodes are stored, with the parameters that sampled them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from slca import processes
from slca.assemble import Parts
from slca.learn.rows import collect, fill, layout, padded, ranks, shortest
from slca.learn.shapes import batch_shapes, empty
from slca.learn.sharding import by_rows, row_shards
from slca.report.metrics import Metrics, pair
from slca.types import POLICY, Batch, Episode

MAX_LOG_RATIO = 20.0  # beyond it a ratio is only "very large"

Drift = Callable[[Any, Sequence[Episode]], list[Float[np.ndarray, "T"]]]


def make_drift(config: Any, parts: Parts, logprob: Callable[[Any, Batch], Any]) -> Drift:
    """(params, episodes) -> log-prob of the trainer minus that of the sampler for every token of every episode, nats.

    logprob: of `slca.learn.probe.make_logprob` for these parts; it is called with the shapes of `drift_shapes`. Not-a-number where
    nothing was sampled and in episodes without a score. Both at the sampling temperature (contract 10).
    """
    unit = config.train.micro_rows * row_shards(parts.mesh)
    shapes = drift_shapes(config, parts)

    def drift(params: Any, episodes: Sequence[Episode]) -> list[Float[np.ndarray, "T"]]:
        lengths = [len(episode.tokens) if episode.scored else 0 for episode in episodes]
        if not any(lengths):
            return [np.full(len(episode.tokens), np.nan) for episode in episodes]
        place = layout(lengths, shortest(config.train.row_lengths, max(lengths)), packed=config.train.pack)
        place = padded(place, shapes[place.row_length], unit)
        sampled = [np.asarray(episode.writer[:n]) == POLICY for episode, n in zip(episodes, lengths, strict=True)]
        rows: dict[str, Any] = {}
        rows["tokens"] = fill(place, [episode.tokens[:n] for episode, n in zip(episodes, lengths, strict=True)], 0, np.int32)
        rows["positions"] = fill(place, [np.arange(n) for n in lengths], 0, np.int32)
        rows["episode"] = fill(place, [np.full(n, k) for n, k in zip(lengths, ranks(place), strict=True)], 0, np.int32)
        rows["loss_weight"] = fill(place, sampled, 0.0, np.float32)
        batch = scored(empty(place.rows, place.row_length))._replace(**rows)
        batch = batch if parts.mesh is None else jax.device_put(batch, by_rows(parts.mesh))
        found = collect(place, np.asarray(jax.device_get(logprob(params, batch)), np.float64))
        return [
            trainer - episode.logprob if len(trainer) else np.full(len(episode.tokens), np.nan)
            for trainer, episode in zip(found, episodes, strict=True)
        ]

    return drift


def drift_shapes(config: Any, parts: Parts) -> dict[int, int]:
    """Row length -> rows: all that this process rolls out in a step."""
    return batch_shapes(config, config.rollout.prompts // processes.count(), row_shards(parts.mesh))


def scored(batch: Batch) -> Batch:
    """The batch without what scoring does not read."""
    read = ("tokens", "positions", "episode", "loss_weight")
    others: dict[str, Any] = {name: None for name in Batch._fields if name not in read}
    return batch._replace(**others)


def drift_metrics(drifts: Sequence[Float[np.ndarray, "T"]]) -> Metrics:
    """sampler_gap_max: largest |log-prob difference|, nats. ratio_sampler_max: largest trainer / sampler probability.

    ess: effective sample size of a token mean reweighted by that ratio, (sum w)^2 / (n sum w^2): 1 when the two agree.
    """
    gap = np.concatenate([x[np.isfinite(x)] for x in drifts]) if len(drifts) else np.zeros(0)
    if not gap.size:
        return {}
    ratio = np.exp(np.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    ess = ratio.sum() ** 2 / (gap.size * (ratio**2).sum())
    return {
        "sampler_gap_max": (float(np.abs(gap).max()), 1.0),
        "ratio_sampler_max": (float(ratio.max()), 1.0),
        "ess": pair(ess, gap.size),
    }
