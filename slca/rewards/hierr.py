"""HierR's process reward (arXiv 2609.29050, section on HierR): how well the calls of an episode match the gold calls.

    process = .10 format + .25 name + .15 key + .20 value + .30 parallel           (additive, as published)

Deterministic, no model. A reward of wrong values is still 0.80 in the additive form; `gated` and `multiplicative` pay less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slca.rewards.values import VALUE_EQ, ValueEq
from slca.types import Parsed, ToolCall

VERSION = "hierr-1"
COMPONENTS = ("format", "name", "key", "value", "parallel")
CHOICES = {
    "combine": ("additive", "gated", "multiplicative"),
    "matching": ("greedy", "hungarian"),
    "value_eq": tuple(VALUE_EQ),
    "parallel": ("first_step", "all_steps"),
    "blocks": ("turn", "tag"),
    "abstain": ("sane", "paper"),
}

# Matched calls: gold index -> (predicted index, key score, value score)
Pairs = dict[int, tuple[int, float, float]]


@dataclass(frozen=True)
class Options:
    """The HierR fields of `config.reward`; remarks in configs/default.py. Raises ValueError for an unknown choice."""

    format: float = 0.10
    name: float = 0.25
    key: float = 0.15
    value: float = 0.20
    parallel_weight: float = 0.30
    combine: str = "additive"
    matching: str = "greedy"
    value_eq: str = "loose"
    parallel: str = "first_step"
    blocks: str = "turn"
    abstain: str = "sane"

    def __post_init__(self):
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"reward.{name}: {getattr(self, name)!r} is not one of {', '.join(allowed)}")

    @property
    def weights(self) -> tuple[float, ...]:
        return self.format, self.name, self.key, self.value, self.parallel_weight


def process_reward(
    turns: Sequence[Parsed], gold_steps: Sequence[Sequence[ToolCall]], toolset: Any, **options: Any
) -> dict[str, float]:
    """Process reward of an episode's assistant turns against the gold steps, with its components, all in [0, 1].

    toolset: a ToolSet, a mapping of tool names, or a collection of names. options: fields of `Options`.
    Keys: format, name (F1), key, value, parallel, process; and calls, gold, matched (counts of calls).

    format: share of call blocks that parse and hold only allowed names. name: multiset F1 over tool names.
    key / value: mean over gold calls with arguments of the Jaccard of keys / the share of gold keys with an equal value, on
    the best same-name prediction. parallel: as many calls in the first block as in the first gold step (`all_steps`: the
    share of steps so). Abstention where no call is right scores 1, or as published 0.90 (`paper`: format stays 0).
    """
    return score(turns, gold_steps, allowed_names(toolset), Options(**options))


def allowed_names(toolset: Any) -> Collection[str]:
    return getattr(toolset, "tools", toolset)


def score(
    turns: Sequence[Parsed],
    gold_steps: Sequence[Sequence[ToolCall]],
    allowed: Collection[str],
    options: Options,
    greedy_loose: Pairs | None = None,
) -> dict[str, float]:
    """`process_reward` with prepared arguments. greedy_loose: the published matching, where a caller has it already."""
    blocks = [_turn_block(turn) for turn in turns if turn.attempted] if options.blocks == "turn" else _tag_blocks(turns)
    predicted = [call for calls, _ in blocks for call in calls]
    gold = [call for step in gold_steps for call in step]
    attempted = any(turn.attempted for turn in turns)
    if greedy_loose is not None and (options.matching, options.value_eq) == ("greedy", "loose"):
        pairs = greedy_loose
    else:
        pairs = match(predicted, gold, VALUE_EQ[options.value_eq], options.matching)
    if options.abstain == "sane" and not predicted:
        # Abstaining is right where no call is; junk that nobody can run must not collect what an honest abstention earns.
        parts = dict.fromkeys(COMPONENTS, 0.0 if attempted or gold else 1.0)
    else:
        key, value = _arguments(predicted, gold, pairs)
        sizes = [len(calls) for calls, _ in blocks if calls]
        parts = {
            "format": _format(blocks, allowed, turns, options.blocks),
            "name": _name_f1(predicted, gold),
            "key": key,
            "value": value,
            "parallel": _parallel(sizes, [len(step) for step in gold_steps], options.parallel),
        }
    return {
        **parts,
        "process": combine(tuple(parts.values()), options.weights, options.combine),
        "calls": float(len(predicted)),
        "gold": float(len(gold)),
        "matched": float(len(pairs)),
    }


def combine(parts: Sequence[float], weights: Sequence[float], how: str) -> float:
    """Components (format, name, key, value, parallel) -> one score.

    additive: the weighted sum (published). gated: in that order, a component is paid only while all earlier ones are full
    (TIER, 2605.16790). multiplicative: format * name * weighted mean of key, value, parallel (ToolRLA, 2603.01620: a wrong
    tool zeroes argument credit). `fsum` keeps a perfect score at exactly 1.0 and the published 0.90 at 0.9.
    """
    if how == "additive":
        return math.fsum(w * c for w, c in zip(weights, parts))
    if how == "gated":
        paid = 0
        while paid < len(parts) - 1 and parts[paid] >= 1.0:
            paid += 1
        return math.fsum(w * c for w, c in zip(weights[: paid + 1], parts))
    rest = math.fsum(weights[2:])
    inner = math.fsum(w * c for w, c in zip(weights[2:], parts[2:])) / rest if rest else 1.0
    return parts[0] * parts[1] * inner


# Calls of a block, and whether it parsed without a fault
Blocks = list[tuple[tuple[ToolCall, ...], bool]]


def _turn_block(turn: Parsed) -> tuple[tuple[ToolCall, ...], bool]:
    return turn.calls, bool(turn.calls) and not turn.errors


def _tag_blocks(turns: Iterable[Parsed]) -> Blocks:
    out: Blocks = []
    for turn in turns:
        if turn.blocks:
            out += [(block.calls, block.parsed) for block in turn.blocks]
        elif turn.attempted:
            out.append(_turn_block(turn))
    return out


def _format(blocks: Blocks, allowed: Collection[str], turns: Sequence[Parsed], how: str) -> float:
    good = sum(clean and all(call.name in allowed for call in calls) for calls, clean in blocks)
    count = len(blocks)
    if how == "tag":  # stray tags count, as published
        count = max(count, sum(turn.opened for turn in turns), sum(turn.closed for turn in turns))
    return good / count if count else 0.0


def _name_f1(predicted: Sequence[ToolCall], gold: Sequence[ToolCall]) -> float:
    if not predicted and not gold:
        return 1.0
    shared = Counter(call.name for call in predicted) & Counter(call.name for call in gold)
    return 2 * shared.total() / (len(predicted) + len(gold))


def _parallel(predicted: Sequence[int], gold: Sequence[int], how: str) -> float:
    if how == "first_step":
        return float((predicted[0] if predicted else 0) == (gold[0] if gold else 0))
    steps = max(len(predicted), len(gold))
    return sum(p == g for p, g in zip(predicted, gold)) / steps if steps else 1.0


# Matching


def similarity(predicted: ToolCall, gold: ToolCall, equal: ValueEq) -> tuple[float, float]:
    """(key Jaccard, share of gold keys whose value is equal) of two calls of the same tool; (1, 1) when gold has no key."""
    ours, theirs = predicted.arguments, gold.arguments
    if not theirs:
        return 1.0, 1.0
    shared = right = 0
    for key, value in theirs.items():
        if key in ours:
            shared += 1
            right += equal(ours[key], value)
    return shared / (len(ours) + len(theirs) - shared), right / len(theirs)


def match(predicted: Sequence[ToolCall], gold: Sequence[ToolCall], equal: ValueEq, how: str = "greedy") -> Pairs:
    """One-to-one pairs of gold and predicted calls of equal name with their key and value scores.

    greedy: in gold order, the best unused prediction by key + value, the first of equals (published).
    hungarian: the pairing of largest total, which greedy can miss.
    """
    scores = {
        (g, p): similarity(ours, theirs, equal)
        for g, theirs in enumerate(gold)
        for p, ours in enumerate(predicted)
        if ours.name == theirs.name
    }
    if how == "hungarian" and len(gold) > 1:  # one gold call takes the best prediction in either way
        return _hungarian(scores, len(gold), len(predicted))
    used: set[int] = set()
    pairs: Pairs = {}
    for g in range(len(gold)):
        best = max(
            (p for p in range(len(predicted)) if (g, p) in scores and p not in used), key=_sum_of(scores, g), default=None
        )
        if best is not None:
            used.add(best)
            pairs[g] = (best, *scores[g, best])
    return pairs


def _sum_of(scores: dict[tuple[int, int], tuple[float, float]], g: int) -> Callable[[int], float]:
    return lambda p: sum(scores[g, p])


def _hungarian(scores: dict[tuple[int, int], tuple[float, float]], golds: int, predictions: int) -> Pairs:
    from scipy.optimize import linear_sum_assignment

    gain = np.zeros((golds, predictions))
    for at, pair in scores.items():
        gain[at] = 1.0 + sum(pair)  # 1 for the name alone: a matched pair beats an unmatched one
    rows, columns = linear_sum_assignment(-gain)
    return {int(g): (int(p), *scores[g, p]) for g, p in zip(rows, columns) if (g, p) in scores}


def _arguments(predicted: Sequence[ToolCall], gold: Sequence[ToolCall], pairs: Pairs) -> tuple[float, float]:
    if gold and not predicted:
        return 0.0, 0.0
    asked = [g for g, call in enumerate(gold) if call.arguments]
    if not asked:
        return 1.0, 1.0
    none = (-1, 0.0, 0.0)
    return sum(pairs.get(g, none)[1] for g in asked) / len(asked), sum(pairs.get(g, none)[2] for g in asked) / len(asked)
