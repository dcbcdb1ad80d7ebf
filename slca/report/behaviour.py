"""How the rollouts of a step went, counted by type: ends, errors, tool statuses, lengths. All kinds every step, zeros included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from slca.report.metrics import Metrics, pair
from slca.types import END_REASONS, ENV, OBSERVATION_STATUS, POLICY, PROMPT, Episode

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
