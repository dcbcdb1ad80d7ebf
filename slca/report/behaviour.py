"""How the rollouts of a step went: ends, errors, tool statuses and lengths, counted by type (all types every step, zeros included);
how far rewards spread inside groups and which advantages the segments got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from slca.report.metrics import Metrics, pair
from slca.types import ABSENT, END_REASONS, ENV, KIND_NAMES, OBSERVATION_STATUS, POLICY, PROMPT, Episode, Rollouts

ERROR_KINDS = (
    "malformed_json", "duplicate_key", "not_object", "missing_name", "missing_arguments", "unknown_tool", "truncated", "too_deep",
    "too_large", "too_many", "number_range", "bad_text", "invalid_arguments",
)  # fmt: skip


def behaviour(episodes: Sequence[Episode]) -> Metrics:
    """Pairs over the N episodes of a step, to be merged over hosts.

    end/<reason>, unscored, forged, truncated: shares of rollouts. error/<kind>, status/<status>, calls, tool_turns: counts a
    rollout. length/<writer>: tokens a rollout; length/policy_max: the longest.
    """
    if not episodes:
        return {}
    n = float(len(episodes))
    turns = [turn for episode in episodes for turn in episode.turns]
    ends = Counter(episode.end for episode in episodes)
    errors = Counter(error.kind for turn in turns for error in turn.errors)
    statuses = Counter(result.status for episode in episodes for results in episode.observations for result in results)
    found: Metrics = {f"end/{reason}": (float(ends[reason]), n) for reason in END_REASONS}
    found |= {f"error/{kind}": (float(errors[kind]), n) for kind in dict.fromkeys((*ERROR_KINDS, *sorted(errors)))}
    found |= {f"status/{status}": (float(statuses[status]), n) for status in OBSERVATION_STATUS}
    found |= {
        "unscored": pair([not episode.scored for episode in episodes]),
        "forged": pair([any(turn.forged for turn in episode.turns) for episode in episodes]),
        "truncated": pair([any(turn.truncated for turn in episode.turns) for episode in episodes]),
        "calls": (float(sum(len(turn.calls) for turn in turns)), n),
        "tool_turns": (float(sum(bool(turn.calls) for turn in turns)), n),
    }
    for name, writer in (("prompt", PROMPT), ("policy", POLICY), ("environment", ENV)):
        lengths = [int(np.sum(episode.writer == writer)) for episode in episodes]
        found[f"length/{name}"] = pair(lengths)
        if writer == POLICY:
            found["length/policy_max"] = (float(max(lengths)), 1.0)
    return found


def spread(rollouts: Rollouts, credit: Float[np.ndarray, "N S"]) -> Metrics:
    """Pairs over the groups and segments of a step, to be merged over hosts.

    reward_std/<channel>: sample standard deviation inside a group, mean over the groups with two scores or
    more. advantage/<kind>_min and _max: the extremes over segments. token_share/<kind>: share of the
    tokens of all segments, where `rollouts.tokens` is known.
    """
    found: Metrics = {}
    for name in ("tool", "summary", "total"):
        values = np.asarray(rollouts.rewards[name], np.float64)
        groups = [values[(rollouts.group == g) & np.isfinite(values)] for g in np.unique(rollouts.group)]
        found[f"reward_std/{name}"] = pair([x.std(ddof=1) for x in groups if len(x) > 1])
    for kind, name in enumerate(KIND_NAMES):
        inside = rollouts.kind == kind
        if inside.any():
            found[f"advantage/{name}_min"] = (float(credit[inside].min()), 1.0)
            found[f"advantage/{name}_max"] = (float(credit[inside].max()), 1.0)
        if rollouts.tokens is not None:
            total = rollouts.tokens[rollouts.kind != ABSENT].sum()
            found[f"token_share/{name}"] = (float(rollouts.tokens[inside].sum()), float(total))
    return found
