"""The laws of algorithms-related section 9 that speak of credit and focus (1 to 6), for every record of the table.

Laws 7 and 8, which speak of gradients, are in test_lock.py.
"""

from dataclasses import replace

import numpy as np
import pytest

from slca.credit import focus
from slca.credit.algorithms import ALGORITHMS, GRPO, algorithm
from slca.credit.estimators import aligned, outcome, rarity, routed, scaled, table, total
from slca.types import ABSENT, SUMMARY, TOOL
from tests.credit.rollouts import anything

RECORDS = list(ALGORITHMS.values())
EVERY = pytest.mark.parametrize("record", RECORDS, ids=list(ALGORITHMS))

# Stated exceptions: role constants survive groups without spread and reach lone rollouts; a floor is an absolute score
CONSTANTS = {"triage"}
FLOORS = {"slca_floor"}


@EVERY
def test_law_1_shape_finite_and_nothing_where_nothing_is(record):
    rollouts = anything()
    found = record.credit(rollouts)
    assert found.shape == rollouts.kind.shape and found.dtype == np.float64 and np.isfinite(found).all()
    assert (found[rollouts.kind == ABSENT] == 0).all()
    assert (found[1] == 0).all()  # unscored
    assert np.abs(found).max() > 0


@EVERY
def test_law_2_equal_rewards_give_exactly_nothing(record):
    rollouts = anything(1)
    rollouts = replace(rollouts, rewards={k: np.where(np.isnan(v), v, 0.35) for k, v in rollouts.rewards.items()})
    # returns and sums differ with the number of segments: level them
    level = rollouts.kind != ABSENT
    rollouts.rewards["final"] = np.where(level, 0.0, np.nan)
    rollouts.rewards["segment"] = np.where(level, 0.0, np.nan)
    assert np.any(record.credit(rollouts) != 0) == (record.name in CONSTANTS | FLOORS)


@EVERY
def test_law_3_constants_do_not_matter_and_rows_permute(record):
    rollouts = anything(2)
    before = record.credit(rollouts)
    order = np.random.default_rng(0).permutation(len(before))
    moved = replace(
        rollouts, group=rollouts.group[order], kind=rollouts.kind[order],
        rewards={k: v[order] for k, v in rollouts.rewards.items()}, labels={k: v[order] for k, v in rollouts.labels.items()},
    )  # fmt: skip
    np.testing.assert_allclose(record.credit(moved), before[order], rtol=0, atol=1e-9)
    shift = rollouts.group * 10.0
    verdicts = {"solved", "segment", "final"}  # binary, or summed over a varying number of segments
    shifted = {k: v + shift if v.ndim == 1 and k not in verdicts else v for k, v in rollouts.rewards.items()}
    if record.name not in FLOORS:
        np.testing.assert_allclose(record.credit(replace(rollouts, rewards=shifted)), before, rtol=0, atol=1e-6)


@EVERY
def test_law_4_lone_and_absent_members(record):
    rollouts = anything(4)
    lone = replace(
        rollouts, group=np.append(rollouts.group, 99), kind=np.vstack([rollouts.kind, rollouts.kind[2]]),
        rewards={k: np.concatenate([v, v[2:3] + 5]) for k, v in rollouts.rewards.items()},
        labels={k: np.concatenate([v, v[2:3]]) for k, v in rollouts.labels.items()},
    )  # fmt: skip
    lone.labels["state"][-1] = np.arange(lone.kind.shape[1])
    before, after = record.credit(rollouts), record.credit(lone)
    if record.name in CONSTANTS:
        assert np.any(after[-1] != 0)
        return
    np.testing.assert_array_equal(after[-1], 0)
    # GDPO's deviation is the batch's, so one more rollout of credit 0 rescales it
    tolerance = 0.05 if record.name == "gdpo" else 0.0
    np.testing.assert_allclose(after[:-1], before, rtol=tolerance, atol=0)


@EVERY
@pytest.mark.parametrize("kinds", [(TOOL, SUMMARY), ()], ids=["with segments", "died before it said anything"])
def test_law_4_an_unscored_rollout_changes_nobodys_credit(record, kinds):  # contract 7
    rollouts = anything(6)
    width = rollouts.kind.shape[1]

    def added(name, values):
        row = np.full(values.shape[1:], 0 if name == "step" else -1, values.dtype)
        return np.concatenate([values, row[None]])

    more = replace(
        rollouts, group=np.append(rollouts.group, rollouts.group[2]),
        kind=np.vstack([rollouts.kind, [*kinds, *[ABSENT] * (width - len(kinds))]]),
        rewards={k: np.concatenate([v, np.full((1, *v.shape[1:]), np.nan)]) for k, v in rollouts.rewards.items()},
        labels={k: added(k, v) for k, v in rollouts.labels.items()},
    )  # fmt: skip
    before, after = record.credit(rollouts), record.credit(more)
    np.testing.assert_array_equal(after[-1], 0)
    np.testing.assert_allclose(after[:-1], before, rtol=1e-12, atol=1e-12)


def test_law_6_neutral_settings_are_grpo():
    rollouts = anything(5)
    rollouts.rewards["segment"] = np.where(rollouts.kind != ABSENT, rollouts.rewards["total"][:, None], np.nan)
    grpo = GRPO(rollouts)
    ones = np.ones(rollouts.kind.shape)
    same = {
        "toolpo": total(outcome("total"), routed("action", TOOL), weights=(1.0, 0.0)),
        "cue": scaled(GRPO, rarity("cell", "solved", 0.0)),
        "triage": total(GRPO, table("role", (1.0, 0.5, -0.1, -0.5)), weights=(1.0, 0.0)),
        "gigpo": algorithm("gigpo@0").rule,
        "mix": algorithm("mix@1").rule,
    }
    for name, rule in same.items():
        np.testing.assert_array_equal(rule(rollouts), grpo, err_msg=name)
    one_kind = replace(rollouts, kind=np.where(rollouts.kind == ABSENT, ABSENT, SUMMARY))
    one_kind.rewards["summary"] = one_kind.rewards["total"]
    np.testing.assert_array_equal(routed("summary", SUMMARY)(one_kind), GRPO(one_kind))
    one_segment = replace(rollouts, kind=rollouts.kind[:, :1], rewards={**rollouts.rewards})
    one_segment.rewards["segment"] = rollouts.rewards["total"][:, None]
    np.testing.assert_array_equal(aligned("segment", kinds=False)(one_segment), GRPO(one_segment))
    signal = replace(rollouts, labels={**rollouts.labels, "step": ones})
    signal.rewards["layered"] = signal.rewards["total"]
    np.testing.assert_array_equal(ALGORITHMS["signal"].credit(signal), GRPO(signal))
    rltr = total(routed("total", TOOL, presence="none"), routed("total", SUMMARY, presence="none"))
    np.testing.assert_array_equal(rltr(rollouts), grpo)


FOCUSED = pytest.mark.parametrize("record", [r for r in RECORDS if r.focus], ids=lambda r: r.name)


def measured(random, mask):
    """Every aux array there is, NaN where nothing is trained."""
    aux = {name: random.normal(size=mask.shape) for name in ("gap", "sign", "surprisal")}
    aux |= {name: np.abs(random.normal(size=mask.shape)) for name in ("teacher_kl", "entropy", "importance")}
    reference = np.resize([0, -1, 2], len(mask))
    return {name: np.where(mask, values, np.nan) for name, values in aux.items()} | {"reference": reference}


@FOCUSED
def test_law_5_a_focus_is_never_negative_and_is_one_off_the_mask(record):
    random = np.random.default_rng(0)
    for _ in range(20):
        mask = random.uniform(size=(3, 9)) < 0.7
        found = record.focus(measured(random, mask), mask)
        assert found.shape == mask.shape and np.isfinite(found).all() and (found >= 0).all()
        np.testing.assert_array_equal(found[~mask], 1)


def test_law_6_neutral_focuses_are_one():
    mask = np.ones((3, 9), bool)
    aux = measured(np.random.default_rng(1), mask)
    neutral = {
        "self_conditioned": focus.self_conditioned()({**aux, "reference": np.full(3, -1)}, mask),
        "gear": focus.gear()({**aux, "teacher_kl": np.full((3, 9), 0.2)}, mask),
        "oar": focus.oar("saliency", quantile=0.0, beta=0.0)(aux, mask),
        "crest": focus.crest(strength=0.0)(aux, mask),
    }
    for name, found in neutral.items():
        np.testing.assert_allclose(found, 1, rtol=1e-12, err_msg=name)
