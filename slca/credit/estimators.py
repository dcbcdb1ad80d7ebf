"""Estimators: combinators that pick reward channels, compare them, and send the result to segments, [N, S].

SLCA = total(routed("tool", TOOL), routed("summary", SUMMARY))
SLCA(rollouts, options)          # float64 [N, S]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from slca.credit.credit import Credit, channel, label, per_rollout, scored
from slca.types import ABSENT, KIND_NAMES, SUMMARY, TOOL, Rollouts


def _reads(*parts: Credit) -> dict[str, Any]:
    """What a credit made of `parts` reads."""
    found: dict[str, Any] = {
        name: tuple(dict.fromkeys(x for part in parts for x in getattr(part, name)))
        for name in ("channels", "labels", "options")
    }
    return found | {"whole_batch": any(part.whole_batch for part in parts)}


def _compares(norm: str | None) -> tuple[str, ...]:
    """The options that a comparison with this norm reads; None = the config's. Where nothing is divided, `ddof` moves the floor alone."""
    if norm is None:
        return "norm", "ddof", "eps", "std_floor"
    return ("std_floor",) if norm in ("center", "rloo") else ("ddof", "eps", "std_floor")


def _per_segment(rollouts: Rollouts, name: str) -> Float[np.ndarray, "N S"]:
    x = channel(rollouts, name)
    if x.shape != rollouts.kind.shape:
        raise ValueError(f"reward channel {name!r} has shape {x.shape}; one score a segment {rollouts.kind.shape} is needed")
    return x


def _for_kind(rollouts: Rollouts, name: str, kind: int) -> Float[np.ndarray, "N"]:
    """The channel of a kind of segments, one score a rollout. Raises ValueError for any other shape."""
    x = channel(rollouts, name)
    if x.ndim != 1:
        raise ValueError(f"reward channel {name!r} has shape {x.shape}; {KIND_NAMES[kind]} credit needs one score a rollout")
    return x


WEIGHTS = {TOOL: "tool_weight", SUMMARY: "summary_weight"}


def outcome(
    *names: str, norm: str | None = None, kind: int | None = None, stepwise: bool = False, weight: int | None = None
) -> Credit:
    """One value for the whole rollout: the sum of the channels against the group, on every segment (GRPO) or on one kind.

    stepwise: a rollout enters the statistics once a segment, so that long rollouts weigh more (GiGPO's official code).
    weight: the kind of segment whose weight multiplies the value after normalisation (GDPO); None = 1.
    """

    def function(rollouts, options):
        factor = 1.0 if weight is None else options.weight(weight)
        x = sum(per_rollout(rollouts, name) for name in names)
        if stepwise:
            present = rollouts.kind != ABSENT
            each = np.broadcast_to(x[:, None], present.shape)
            return factor * options.compare(each, np.broadcast_to(rollouts.group[:, None], present.shape), present, norm)
        value = options.compare(x, rollouts.group, np.ones(len(x), bool), norm)
        receives = rollouts.kind != ABSENT if kind is None else rollouts.kind == kind
        return np.where(receives, factor * value[:, None], 0.0)

    return Credit(function, names, options=(*_compares(norm), *(() if weight is None else (WEIGHTS[weight],))))


def routed(name: str, kind: int, norm: str | None = None, presence: str | None = None) -> Credit:
    """A channel [N] that only segments of one kind may receive (SLCA), times that kind's weight after normalisation.

    presence: exclude - rollouts without such a segment leave the statistics (paper); floor - they enter with 0;
    none - they enter with the score they were given. Without a segment there is nothing to receive in any case.
    Rollouts of the optional label `abstained` [N] (no call, rightly) always enter tool statistics with their score: else a
    needless call would be compared with other needless calls only, and nothing would ever speak against it.
    """

    def function(rollouts, options):
        x = _for_kind(rollouts, name, kind)
        receives = rollouts.kind == kind
        counts = receives.any(1)
        if kind == TOOL and "abstained" in rollouts.labels:
            counts |= rollouts.labels["abstained"]
        mode = presence or options.presence
        if mode == "floor":
            x = np.where(counts, x, np.where(scored(rollouts), 0.0, np.nan))
        value = options.compare(x, rollouts.group, counts if mode == "exclude" else np.ones_like(counts), norm)
        return np.where(receives, options.weight(kind) * value[:, None], 0.0)

    return Credit(function, (name,), options=(*_compares(norm), WEIGHTS[kind], *(() if presence else ("presence",))))


def anchored(name: str, kind: int, by: str, norm: str | None = None) -> Credit:
    """A channel [N] that only segments of one kind receive, compared among the group's segments of that kind with an equal label
    [N, S]; times that kind's weight after normalisation. A segment alone with its label gets 0. Rollouts without such a segment have
    nothing to compare, whatever `credit.presence` says."""

    def function(rollouts, options):
        receives = rollouts.kind == kind
        each = np.broadcast_to(_for_kind(rollouts, name, kind)[:, None], receives.shape)
        value = options.compare(each, _joint(rollouts.group[:, None], label(rollouts, by)), receives, norm)
        return options.weight(kind) * value

    return Credit(function, (name,), (by,), (*_compares(norm), WEIGHTS[kind]))


Transform = Callable[[Float[np.ndarray, "N S"], Bool[np.ndarray, "N S"]], Float[np.ndarray, "N S"]]


def aligned(
    name: str, by: str | None = None, norm: str | None = None, transform: Transform | None = None, kinds: bool = True
) -> Credit:
    """A channel [N, S]: segment k against segment k of the group's rollouts, or against equal labels `by` of the group.

    Without a label, `kinds` keeps a tool segment from being compared with a summary at the same position.
    """

    def function(rollouts, options):
        present = rollouts.kind != ABSENT
        x = _per_segment(rollouts, name)
        x = transform(x, present) if transform else x
        if by:
            inner = label(rollouts, by)
        else:
            inner = np.arange(x.shape[1])[None] * 2 + (rollouts.kind == SUMMARY) * kinds
        return options.compare(x, _joint(rollouts.group[:, None], inner), present, norm)

    return Credit(function, (name,), (by,) if by else (), _compares(norm))


def _joint(a: Int[np.ndarray, "..."], b: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """Pairs (a, b) as single ids."""
    _, a = np.unique(a, return_inverse=True)
    _, inverse = np.unique(b, return_inverse=True)
    inverse = inverse.reshape(np.shape(b))
    return a.reshape(-1, 1) * (int(inverse.max(initial=0)) + 1) + inverse


def discounted(gamma: float) -> Transform:
    """Step rewards -> discounted returns: sum over k >= t of gamma^(k - t) r_k."""

    def function(x, present):
        out = np.where(present, x, 0.0)
        for t in range(x.shape[1] - 2, -1, -1):
            out[:, t] += gamma * out[:, t + 1]
        return out

    return function


def blended(weight: float) -> Transform:
    """(1 - weight) r_k + weight * mean over the rollout's segments."""

    def function(x, present):
        mean = np.where(present, x, 0.0).sum(1) / np.maximum(present.sum(1), 1)
        return (1 - weight) * x + weight * mean[:, None]

    return function


def table(name: str, values: tuple[float, ...]) -> Credit:
    """A constant by integer label; 0 for absent segments, unscored rollouts and label -1."""

    def function(rollouts, options):
        ids = label(rollouts, name)
        given = (rollouts.kind != ABSENT) & scored(rollouts)[:, None] & (ids >= 0)
        return np.where(given, np.asarray(values, np.float64)[np.maximum(ids, 0)], 0.0)

    return Credit(function, labels=(name,), options=())


def total(*parts: Credit, weights: tuple[float, ...] | None = None) -> Credit:
    """Weighted sum. A part of weight 0 is not evaluated, so that mix(1) is GRPO to the bit."""
    used = [(w, p) for w, p in zip(weights or (1.0,) * len(parts), parts, strict=True) if w]

    def function(rollouts, options):
        out = np.zeros(rollouts.kind.shape)
        for weight, part in used:
            out += weight * part(rollouts, options)
        return out

    return Credit(function, **_reads(*(p for _, p in used)))


def scaled(base: Credit, weight: Credit) -> Credit:
    """`base` times a multiplier a segment."""
    return Credit(lambda rollouts, options: base(rollouts, options) * weight(rollouts, options), **_reads(base, weight))


def labelled(name: str) -> Credit:
    """A label [N, S] as a multiplier."""
    return Credit(lambda rollouts, options: np.asarray(label(rollouts, name), np.float64), labels=(name,), options=())


def whitened(base: Credit, eps: float = 1e-8) -> Credit:
    """Centred and scaled over all segments of the batch's scored rollouts, population deviation (TRIAGE)."""

    def function(rollouts, options):
        a = base(rollouts, options)
        member = (rollouts.kind != ABSENT) & scored(rollouts)[:, None]
        if not member.any():
            return np.zeros_like(a)
        return np.where(member, (a - a[member].mean()) / (a[member].std() + eps), 0.0)

    return Credit(function, **_reads(base) | {"whole_batch": True})


def rescaled(base: Credit, eps: float = 1e-4) -> Credit:
    """Rollout-level credit divided by its standard deviation over the batch's rollouts (GDPO's whitening).

    Group-normalised channels have mean zero by construction; centring again would only turn rounding into credit for
    constant groups. One vote a rollout: a long rollout does not weigh more.
    """

    def function(rollouts, options):
        a = base(rollouts, options)
        member = (rollouts.kind != ABSENT).any(1) & scored(rollouts)
        if member.sum() < 2:
            return np.zeros_like(a)
        value = np.where(rollouts.kind != ABSENT, a, 0.0).sum(1) / np.maximum((rollouts.kind != ABSENT).sum(1), 1)
        return a / (value[member].std(ddof=options.ddof) + eps)

    return Credit(function, **_reads(base, Credit(function, options=("ddof",))) | {"whole_batch": True})


def rarity(cell: str, correct: str, alpha: float = 0.8) -> Credit:
    """Multiplier of Cue-GRPO (2608.03467): N |C_i|^-alpha / sum_j |C_j|^-alpha over the N correct rollouts j of the group.

    C_i: correct rollouts of the group in the same cell. 1 for rollouts that are not correct.
    """

    def function(rollouts, options):
        right = channel(rollouts, correct) > 0
        _, group = np.unique(rollouts.group, return_inverse=True)
        _, cells = np.unique(_joint(rollouts.group[:, None], label(rollouts, cell)[:, None]), return_inverse=True)
        cells = cells.ravel()
        size = np.bincount(cells, right)[cells]
        share = right * np.maximum(size, 1.0) ** -alpha
        factor = np.bincount(group, right)[group] * share / np.maximum(np.bincount(group, share)[group], 1e-9)
        return np.where(right, factor, 1.0)[:, None] * np.ones(rollouts.kind.shape)

    return Credit(function, (correct,), (cell,), options=())


def unsolved(correct: str, base: Credit, other: Credit) -> Credit:
    """`other` in groups without any correct rollout, `base` elsewhere (SC-GRPO's routing)."""

    def function(rollouts, options):
        right = np.nan_to_num(channel(rollouts, correct)) > 0
        _, group = np.unique(rollouts.group, return_inverse=True)
        solved = np.bincount(group, right)[group] > 0
        return np.where(solved[:, None], base(rollouts, options), other(rollouts, options))

    return Credit(function, **_reads(base, other, Credit(other.function, (correct,), options=())))
