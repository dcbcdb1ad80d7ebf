"""How much of one segment's credit comes from the other segment's reward. Exact, cheap, logged under every method.

With R = w_T R_T + w_S R_S in one group, z(R) = kappa_T z(R_T) + kappa_S z(R_S), where kappa_c = w_c sigma_c / sigma_R: GRPO puts
weight kappa_S on the summary score at tool tokens; SLCA sets kappa_T = 1, kappa_S = 0. kappa_S exceeds 1 when the rewards anti-correlate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from slca.credit.credit import DEFAULTS, Options, channel
from slca.credit.estimators import outcome, routed
from slca.types import ABSENT, SUMMARY, TOOL, Rollouts

Pair = tuple[float, float]
CreditOf = Callable[[Rollouts], Float[np.ndarray, "N S"]]


def diagnose(
    rollouts: Rollouts,
    credit: Float[np.ndarray, "N S"] | None = None,
    options: Options = DEFAULTS,
    credit_of: CreditOf | None = None,
    process_weight: float = 1.0,
    summary_weight: float = 1.0,
) -> dict[str, Pair]:
    """(sum, weight) metrics of a step's rollouts; reads the channels tool, summary and total. process_weight, summary_weight: w_T and
    w_S of the total, `reward.process_weight` and `reward.summary_weight`.

    kappa/tool, kappa/summary and correlation: mean over the groups where they exist (two members with both segments, spread
    in the total; in both). sign_conflict/grpo: share of tool tokens where GRPO's credit and SLCA's have opposite signs;
    sign_conflict/method: the same for `credit`. zero_variance/*: share of groups whose channel has no spread.
    presence/*: rollouts with such a segment. leak, with `credit_of`: the interventional leak test on the method itself (see `leak`).
    Every key starts with `credit/`.
    """
    out: dict[str, Pair] = {}
    both = (rollouts.kind == TOOL).any(1) & (rollouts.kind == SUMMARY).any(1)
    tool, summary, total = (channel(rollouts, name) for name in ("tool", "summary", "total"))
    weights = process_weight, summary_weight
    for name, values in _kappas(rollouts.group, both, tool, summary, total, options, weights).items():
        out[name] = float(np.sum(values)), float(len(values))
    locked = routed("tool", TOOL)(rollouts, options)
    out["sign_conflict/grpo"] = _conflict(rollouts, outcome("total")(rollouts, options), locked)
    if credit is not None:
        out["sign_conflict/method"] = _conflict(rollouts, np.asarray(credit), locked)
    has = {"tool": (rollouts.kind == TOOL).any(1), "summary": (rollouts.kind == SUMMARY).any(1)}
    counts = {
        "tool": has["tool"] | rollouts.labels.get("abstained", False),
        "summary": has["summary"],
        "total": np.isfinite(total),
    }
    for name, x in (("tool", tool), ("summary", summary), ("total", total)):
        out[f"zero_variance/{name}"] = _flat_groups(rollouts.group, x, counts[name], options)
    for name, present in has.items():
        out[f"presence/{name}"] = float(present.sum()), float(len(present))
    if credit_of is not None:
        out["leak"] = leak(credit_of, rollouts, weight=summary_weight), 1.0
    return {f"credit/{name}": value for name, value in out.items()}


def _kappas(  # type: ignore[no-untyped-def]
    group, both, tool, summary, total, options: Options, weights: tuple[float, float]
) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {"kappa/tool": [], "kappa/summary": [], "correlation": []}
    usable = both & np.isfinite(tool) & np.isfinite(summary) & np.isfinite(total)
    for g in np.unique(group):
        rows = usable & (group == g)
        if rows.sum() < 2:
            continue
        t, s, r = (x[rows].std(ddof=options.ddof) for x in (tool, summary, total))
        if r > options.std_floor:
            out["kappa/tool"].append(weights[0] * t / r)
            out["kappa/summary"].append(weights[1] * s / r)
        if min(t, s) > options.std_floor:
            out["correlation"].append(float(np.corrcoef(tool[rows], summary[rows])[0, 1]))
    return out


def _conflict(rollouts: Rollouts, a: np.ndarray, b: np.ndarray) -> Pair:
    size = np.ones(rollouts.kind.shape) if rollouts.tokens is None else rollouts.tokens
    inside = np.where(rollouts.kind == TOOL, size, 0)
    return float((inside * (a * b < 0)).sum()), float(inside.sum())


def _flat_groups(group: np.ndarray, x: np.ndarray, present: np.ndarray, options: Options) -> Pair:
    moved = options.compare(x, group, present, "center") != 0
    groups = np.unique(group)
    return float(len(groups) - len(np.unique(group[moved]))), float(len(groups))


# The interventional leak test


def replace_summary(rollouts: Rollouts, new: Float[np.ndarray, "N"], weight: float = 1.0) -> Rollouts:
    """The same rollouts had the summary been graded `new`: `summary`, and every channel that contains it.

    weight: `reward.summary_weight` in the total. The channels success (solved and graded >= 0.5, if `solved` is there),
    segment and final follow.
    """
    rewards = {name: np.array(values, np.float64) for name, values in rollouts.rewards.items()}
    change = np.asarray(new, np.float64) - rewards["summary"]
    rewards["summary"] = np.asarray(new, np.float64)
    if "total" in rewards:
        rewards["total"] = rewards["total"] + weight * change
    if "success" in rewards and "solved" in rewards:
        known = np.isfinite(rewards["success"])
        rewards["success"] = np.where(known, (rewards["solved"] > 0) & (rewards["summary"] >= 0.5), np.nan)
    if "segment" in rewards:
        rewards["segment"] = np.where(rollouts.kind == SUMMARY, rewards["segment"] + change[:, None], rewards["segment"])
    if "final" in rewards:
        present = rollouts.kind != ABSENT
        last = present & (np.arange(present.shape[1]) == present.sum(1, keepdims=True) - 1)
        rewards["final"] = np.where(last, rewards["final"] + weight * change[:, None], rewards["final"])
    return replace(rollouts, rewards=rewards)


def leak(credit: CreditOf, rollouts: Rollouts, seed: int = 0, weight: float = 1.0) -> float:
    """max |change of credit on tool segments| when summary rewards are permuted inside groups and then redrawn.

    Exactly 0 for a locked method; > 0 for grpo and toolpo whenever groups have spread. Unscored rollouts stay unscored.
    """
    random = np.random.default_rng(seed)
    summary = channel(rollouts, "summary")
    permuted = summary.copy()
    for g in np.unique(rollouts.group):
        rows = np.flatnonzero((rollouts.group == g) & np.isfinite(summary))
        permuted[rows] = summary[random.permutation(rows)]
    redrawn = np.where(np.isfinite(summary), random.uniform(size=summary.shape), np.nan)
    before, tool = credit(rollouts), rollouts.kind == TOOL
    after = [credit(replace_summary(rollouts, new, weight)) for new in (permuted, redrawn)]
    return max(float(np.abs(np.where(tool, a - before, 0.0)).max(initial=0.0)) for a in after)
