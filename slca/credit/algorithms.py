"""The table of algorithms. Adding one takes an entry here and a test.

    ALGORITHMS["slca"].credit(rollouts)          # float64 [N, S]
    algorithm("mix@0.5", config.credit)          # one parameter set, arithmetic from the config
    algorithm("slca+llds")                       # credit of the first, focus and loss of the second

Channels and labels come from slca.rewards.annotate, aux arrays from slca.learn.probe. Loss terms are named, not built, here:
credit imports nothing but numpy, jax and types.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slca.credit import focus
from slca.credit.credit import Options
from slca.credit.estimators import (
    aligned,
    anchored,
    blended,
    discounted,
    labelled,
    outcome,
    rarity,
    rescaled,
    routed,
    scaled,
    table,
    total,
    unsolved,
    whitened,
)
from slca.credit.record import GRPO, Algorithm, check, check_lock, join
from slca.types import SUMMARY, TOOL

__all__ = ["ALGORITHMS", "Algorithm", "algorithm", "check", "check_lock", "join"]

SLCA = total(routed("tool", TOOL), routed("summary", SUMMARY))
SLCA_FLOOR = total(routed("tool", TOOL, presence="floor"), routed("summary", SUMMARY, presence="floor"))

# decisive progress, useful exploration, no-progress infrastructure, regression
ROLE_CONSTANTS = (1.0, 0.5, -0.1, -0.5)


def _mix(share: float) -> Algorithm:
    if share > 1:
        raise ValueError(f"mix@{share:g}: the share of GRPO must lie in 0..1")
    return Algorithm(
        f"mix@{share:g}",
        "(1 - x) SLCA + x GRPO on every segment: 0 is SLCA, 1 is GRPO to the bit. Ours; SD-GRPO (2606.09871) reports that "
        "entangled segments do better with a holistic part.",
        total(SLCA, GRPO, weights=(1 - share, share)),
        locked=share == 0,
        at=_mix,
    )


def _segment_decomposed(blend: float) -> Algorithm:
    if blend > 1:
        raise ValueError(f"segment_decomposed@{blend:g}: the share of the rollout's own reward must lie in 0..1")
    return Algorithm(
        f"segment_decomposed@{blend:g}",
        "SD-GRPO (2606.09871): z-score of segment k's reward across the group, sent to segment k. Published in words. "
        "Inferred: the blend (1 - x) r_k + x mean(r), x = 0 by default; segments are matched by position and kind.",
        aligned("segment", transform=blended(blend) if blend else None),
        at=_segment_decomposed,
    )


STEP_RETURNS = aligned("final", by="state", transform=discounted(0.95))


def _gigpo(omega: float) -> Algorithm:
    return Algorithm(
        f"gigpo@{omega:g}",
        "GiGPO (2505.10978): episode credit + x times the z-score of the discounted return (0.95) among steps of the group that "
        "start from the same state. Published: omega 1, exact anchors. Inferred: the state is the multiset of executed calls. "
        "A lone state gets 0, as in the official code; a lone episode gets 0 too (there: its raw return).",
        total(GRPO, STEP_RETURNS, weights=(1.0, omega)),
        at=_gigpo,
    )


def _triage(strength: float) -> Algorithm:
    return Algorithm(
        f"triage@{strength:g}",
        "TRIAGE (2606.32017): outcome credit + x times a constant by role of the segment, whitened over the batch's segments. "
        "Constants 1, .5, -.1, -.5 from a re-implementation of v3. Inferred: x = 0.5; roles by rule unless a judge gives them. "
        "The constants survive groups without spread, as published: a solved group still moves the policy. One process.",
        whitened(total(GRPO, table("role", ROLE_CONSTANTS), weights=(1.0, strength))),
        at=_triage,
    )


def _cue(alpha: float) -> Algorithm:
    return Algorithm(
        f"cue@{alpha:g}",
        "Cue-GRPO (2608.03467): positive credit moves to rare solution forms, A_i N |C_i|^-x / sum_j |C_j|^-x over correct "
        "rollouts. Rule and x = 0.8 from two readings. Inferred: a form is the sorted tuple of tools called; no stabiliser.",
        scaled(GRPO, rarity("cell", "solved", alpha)),
        at=_cue,
    )


def _llds(weight: float) -> Algorithm:
    return Algorithm(
        f"llds@{weight:g}",
        "LLDS (2512.04220): GRPO + x times the mean over trained tokens of max(0, log pi_old - log pi), on segments with A >= 0 "
        "whose likelihood fell in sum (action gate). Published: x = 0.2. Exactly 0 at the old policy, so it needs two updates a batch: "
        "where a config makes one, train.mu is set to 2.",
        terms={"llds": {"weight": weight}},
        updates=2,
        at=_llds,
    )


def _search_sapo(weight: float) -> Algorithm:
    return Algorithm(
        f"search_sapo@{weight:g}",
        "Search-agent SAPO (2603.10069): GRPO + x times the mean over tokens of rollouts with A >= 0 of [ratio <= t] "
        "(log pi_old - log pi). The form is published; x = 0.1 and t = 0.8 are inferred. Not Soft Adaptive Policy Optimization. Exactly "
        "0 at the old policy, so it needs two updates a batch: where a config makes one, train.mu is set to 2.",
        terms={"search_sapo": {"weight": weight, "threshold": 0.8}},
        updates=2,
        at=_search_sapo,
    )


def _rebel(eta: float) -> Algorithm:
    return Algorithm(
        f"rebel@{eta:g}",
        "REBEL (2404.16767): regress log-ratio gaps on reward gaps, (d - d' - x (r - r'))^2, over whole groups: twice the "
        "group variance of d - x r (exact). Published: x = 1 on-policy. Replaces the surrogate; each rollout has one vote, so groups "
        "weigh by their scored rollouts (published: pairs, all alike). The first update of a batch goes where Dr. GRPO's does: at least two.",
        outcome("total", norm="center"),
        loss={"policy": "terms", "aggregation": "seq_mean_token_sum", "denominator": "learnable"},
        terms={"rebel": {"eta": eta}},
        whole_groups=True,
        updates=2,
        at=_rebel,
    )


RECORDS = (
    # one scalar a rollout
    Algorithm("grpo", "GRPO (2402.03300): z-score of the total reward in the group, on every sampled token."),
    Algorithm(
        "dr_grpo",
        "Dr. GRPO (2503.20783): centred only, constant-length divisor.",
        outcome("total", norm="center"),
        loss={"aggregation": "constant"},
    ),
    Algorithm("rloo", "RLOO (2402.14740): reward minus the mean of the others in the group.", outcome("total", norm="rloo")),
    Algorithm(
        "gdpo",
        "GDPO (2601.05242): each channel z-scored in the group, summed with credit.tool_weight and credit.summary_weight, scaled by the "
        "batch's deviation (eps 1e-4); all tokens. The official verl version whitens over tokens; here each rollout has one vote. One "
        "process.",
        rescaled(total(outcome("tool", weight=TOOL), outcome("summary", weight=SUMMARY))),
    ),
    Algorithm(
        "dapo",
        "DAPO (2503.14476): GRPO with clip-higher 0.2 / 0.28, token mean, soft over-long penalty. Dynamic sampling is "
        "rollout.resample, over-long filtering loss.mask_truncated; both are off unless set, also for this record.",
        outcome("total", "overlong"),
        loss={"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean"},
    ),
    # one scalar a segment
    Algorithm(
        "slca",
        "SLCA-GRPO (2609.29050): process reward to tool segments, summary reward to summary segments, each z-scored among the "
        "rollouts that have the segment; weights after normalisation.",
        SLCA,
        locked=True,
    ),
    Algorithm(
        "slca_floor",
        "SLCA with absent segments entering the statistics as 0: a lone caller is credited. Ours.",
        SLCA_FLOOR,
        locked=True,
    ),
    Algorithm(
        "slca_state",
        "SLCA whose summaries are compared among the group's rollouts that had made the same calls (GiGPO's anchor states), so that what "
        "the calls made possible is not credited to the summary. A summary alone with its calls gets 0. Ours.",
        total(routed("tool", TOOL), anchored("summary", SUMMARY, by="state")),
        locked=True,
    ),
    replace(_mix(0.5), name="mix"),
    Algorithm(
        "support_control",
        "The total reward with SLCA's statistics and support: separates its normalisation from its routing (limitation 1.15).",
        total(routed("total", TOOL), routed("total", SUMMARY)),
    ),
    Algorithm(
        "tool_only_global", "GRPO's credit on tool tokens, 0 on the summary. Ours, an ablation.", outcome("total", kind=TOOL)
    ),
    Algorithm(
        "toolpo",
        "ToolPO (DeepAgent, 2510.21618, eq. 5-7): centred success on every token + centred count of right calls on call tokens, "
        "here the tool segments. Published without a deviation; its memory-folding term does not apply.",
        total(outcome("success", norm="center"), routed("action", TOOL, norm="center", presence="none")),
    ),
    Algorithm(
        "toolpo_slca_repo",
        "ToolPO as the SLCA repository re-implements it: z-scored, calls divided by the gold count, on the whole tool segment.",
        total(outcome("success", norm="zscore"), routed("action_share", TOOL, norm="zscore", presence="none")),
    ),
    Algorithm(
        "rltr",
        "RLTR (2508.19598): completeness + repeat and error penalties, -1 for bad format, z-scored on tool tokens; the summary "
        "gets 0. Constants from the SLCA repository.",
        routed("plan", TOOL),
        locked=True,
    ),
    replace(_segment_decomposed(0.0), name="segment_decomposed"),
    Algorithm(
        "matchtir_dual",
        "MatchTIR (2601.10712): half the z-score of the summed turn rewards + half that of the discounted (0.9) remainder among "
        "turns of equal index. Published: a lone turn keeps its raw value; here 0, a raw score is no advantage.",
        total(outcome("segment"), aligned("segment", transform=discounted(0.9), kinds=False), weights=(0.5, 0.5)),
    ),
    replace(_gigpo(1.0), name="gigpo"),
    Algorithm(
        "gigpo_stepwise",
        "GiGPO (2505.10978) as its official code computes it: the episode part's mean and deviation run over steps, so a long "
        "rollout has more votes.",
        total(outcome("total", stepwise=True), STEP_RETURNS),
    ),
    replace(_triage(0.5), name="triage"),
    replace(_cue(0.8), name="cue"),
    Algorithm(
        "signal",
        "Signal Reshaping (2605.07276): layered reward (usable < solved), step scores as token weights of mean 1, abnormal "
        "rollouts governed by cause. Inferred: tiers 0, .5, 1; step scores by role; cut-off rollouts keep their last step.",
        scaled(outcome("layered"), labelled("step")),
    ),
    # which tokens
    Algorithm(
        "self_conditioned",
        "SC-GRPO (2606.18810): GRPO weighted by KL / (KL + P75) to the same policy shown a correct peer; unsolved groups learn "
        "0.1 z of their distance to a failed peer. Inferred: the reference of an unsolved group gets 0; correct = solved. P75 over "
        "the step's rollouts, in one process, and weights of its first optimiser step (published: a micro-batch, current weights).",
        unsolved("solved", GRPO, total(outcome("peer", norm="zscore"), weights=(0.1,))),
        focus=focus.self_conditioned(),
    ),
    Algorithm(
        "gear",
        "GEAR (2605.11853): credit re-weighted by the divergence to the policy shown the gold calls, held from a spike on. "
        "No formula is public: the whole rule (0.5, 0.8, d / (d + 0.1), mean 1) is inferred.",
        focus=focus.gear(),
    ),
    Algorithm(
        "oar_g",
        "OAR-G (2601.07408): credit re-weighted by input-gradient saliency for the answer; quantile 0.25, beta 1 from its code. "
        "Inferred: the answer is the last summary, or the last segment where there is none; four noise draws, in float32 also where "
        "the policy computes in bfloat16.",
        focus=focus.oar("saliency"),
    ),
    Algorithm(
        "oar_p",
        "OAR-P (2601.07408): as OAR-G with one perturbed forward a token as importance; an oracle for toy models.",
        focus=focus.oar("ablation"),
    ),
    Algorithm(
        "crest",
        "CREST, Teach the Magnitude, Not the Direction: segment-aligned credit, magnitude from the teacher's log-prob gap over 2. "
        "Inferred: the teacher is the same policy shown the gold calls.",
        aligned("segment"),
        focus=focus.crest(),
    ),
    # how the loss is built
    replace(_search_sapo(0.1), name="search_sapo"),
    replace(_llds(0.2), name="llds"),
    Algorithm(
        "gspo",
        "GSPO (2507.18071): sequence-level ratio, clip 3e-4 / 4e-4, sequence mean of token means. At the old policy nothing is clipped: at "
        "least two updates a batch.",
        loss={"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "seq_mean_token_mean"},
        updates=2,
    ),
    Algorithm(
        "espo",
        "ESPO (2512.03759) on an autoregressive policy, where its ELBO is the log-likelihood: sequence ratio, centred reward, mean over "
        "rollouts, k2 KL 0.01 of the whole rollout over its length (its code: the padded length). The diffusion part does not apply. "
        "At least two updates a batch, as for gspo.",
        outcome("total", norm="center"),
        loss={"ratio": "sequence", "kl": "k2_sequence", "kl_coef": 0.01, "aggregation": "seq_mean_token_mean"},
        updates=2,
    ),
    Algorithm(
        "cispo",
        "CISPO (2506.13585): clipped ratio as a detached weight of the log-likelihood; upper clip 5 as in ScaleRL. At "
        "least two updates a batch, as for gspo.",
        loss={"policy": "cispo", "clip_high": 4.0},
        updates=2,
    ),
    replace(_rebel(1.0), name="rebel"),
)

ALGORITHMS: dict[str, Algorithm] = {record.name: record for record in RECORDS}


def algorithm(name: str, config: Any = None) -> Algorithm:
    """`name`, `name@x` or `credit+loss`, computing with the fields of `config.credit` (None = their defaults).

    Raises ValueError for an unknown name (listing the known ones), a parameter where there is none, or a refused join.
    """
    base, *others = [_one(part) for part in name.split("+")]
    for other in others:
        base = join(base, other)
    return replace(base, options=Options.of(config)) if config is not None else base


def _one(name: str) -> Algorithm:
    key, at, value = name.partition("@")
    if key not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {key!r}; known: {', '.join(sorted(ALGORITHMS))}")
    record = ALGORITHMS[key]
    if not at:
        return record
    if record.at is None:
        raise ValueError(f"{key} has no parameter to set with @{value}")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise ValueError(f"{name}: the parameter after @ must be a finite number >= 0")
    return record.at(number)
