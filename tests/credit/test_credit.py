"""compare and the combinators against numbers worked out by hand (algorithms-core 8.8, algorithms-related, F10-F12)."""

import numpy as np
import pytest

from slca.credit.algorithms import algorithm
from slca.credit.credit import Options, compare
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
    whitened,
)
from slca.types import ABSENT, SUMMARY, TOOL
from tests.credit.rollouts import made, pairs

NAN = np.nan
CLOSE = dict(rtol=0, atol=2e-6)
ROUND = dict(rtol=0, atol=6e-5)  # numbers quoted to four places


def one_group(x, **kw):
    return compare(np.asarray(x, float), np.zeros(len(x), int), np.ones(len(x), bool), **kw)


def test_a_pair_is_always_plus_minus_the_same():
    for gap in (0.01, 1.0, 7.0):
        np.testing.assert_allclose(one_group([gap, 0.0]), [0.707106, -0.707106], rtol=0, atol=1e-4)


def test_one_present_of_four_gets_nothing():
    present = np.array([True, False, False, False])
    np.testing.assert_array_equal(compare(np.array([1.0, 2, 3, 4]), np.zeros(4, int), present), 0)


def test_f10_segment_locked_group_of_four():
    tool, summary = [1.0, 0.0, 0.5, 0.5], [0.8, 0.2, NAN, 0.5]
    np.testing.assert_allclose(one_group(tool, ddof=0), [1.4142, -1.4142, 0, 0], rtol=0, atol=1e-3)
    np.testing.assert_allclose(one_group(summary, ddof=0), [1.2247, -1.2247, 0, 0], rtol=0, atol=1e-3)


def test_f11_an_unscored_rollout_leaves_the_statistics():
    np.testing.assert_allclose(one_group([-0.2, -0.6, NAN, -1.0], ddof=0), [1.2247, 0, 0, -1.2247], rtol=0, atol=1e-3)


def test_f12_groups_arrive_mixed():
    key = np.array([0, 1, 0, 1, 0, 1, 0, 1])
    x = np.array([2.0, 5, 0, 5, 1, 9, 1, 5])
    expected = [1.4142, -0.5773, -1.4142, -0.5773, 0, 1.7320, 0, -0.5773]
    np.testing.assert_allclose(compare(x, key, np.ones(8, bool), ddof=0), expected, rtol=0, atol=1e-3)


def test_infinite_scores_are_no_scores():
    np.testing.assert_array_equal(one_group([1.0, 2.0, np.inf, -np.inf]), one_group([1.0, 2.0, NAN, NAN]))


@pytest.mark.parametrize("norm", ["zscore", "center", "rloo", "batch_std"])
@pytest.mark.parametrize("value", [0.1, 0.35, -1e6, 0.0, 1 / 3])
@pytest.mark.parametrize("n", [2, 7, 12])
def test_a_constant_group_is_exactly_zero(norm, value, n):
    noisy = np.float64(np.float32(value)) + np.zeros(n)
    np.testing.assert_array_equal(one_group(noisy, norm=norm), 0)
    np.testing.assert_array_equal(one_group(noisy, norm=norm, std_floor=0.0), 0)


def test_rounding_noise_below_the_floor_is_no_spread():
    np.testing.assert_array_equal(one_group([0.35, 0.35 + 1e-8, 0.35]), 0)
    assert np.abs(one_group([0.35, 0.36, 0.35])).max() > 1


def test_leave_one_out_without_varying_peers_is_finite():
    np.testing.assert_allclose(one_group([1.0, 0, 0, 0], norm="rloo"), [1, -1 / 3, -1 / 3, -1 / 3])


def test_center_and_batch_std():
    np.testing.assert_allclose(one_group([1.0, 0, 0, 1], norm="center"), [0.5, -0.5, -0.5, 0.5])
    x, key = np.array([0.0, 2, 10, 30]), np.array([0, 0, 1, 1])
    spread = np.std([0, 2, 10, 30], ddof=1)
    np.testing.assert_allclose(
        compare(x, key, np.ones(4, bool), norm="batch_std"), np.array([-1, 1, -10, 10]) / (spread + 1e-6)
    )


def test_the_key_may_be_finer_than_the_prompt():
    """Stratified GRPO (2510.06214): strata of equal search count inside a group."""
    x, key = np.array([1.0, 0, 5, 9]), np.array([0, 0, 1, 1])
    np.testing.assert_allclose(compare(x, key, np.ones(4, bool)), [0.7071, -0.7071, -0.7071, 0.7071], rtol=0, atol=1e-4)


@pytest.mark.parametrize("norm", ["zscore", "center", "rloo"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_compare_agrees_with_a_loop_over_groups(norm, ddof):
    random = np.random.default_rng(0)
    for _ in range(30):
        n = random.integers(1, 40)
        key, present = random.integers(0, 6, n), random.uniform(size=n) < 0.8
        x = np.where(random.uniform(size=n) < 0.1, NAN, random.choice([0.0, 0.25, 0.9, 3.0], n))
        expected = np.zeros(n)
        for k in set(key.tolist()):
            rows = [i for i in range(n) if key[i] == k and present[i] and not np.isnan(x[i])]
            values = [x[i] for i in rows]
            if len(rows) > 1 and max(values) > min(values):
                mean = sum(values) / len(rows)
                std = (sum((v - mean) ** 2 for v in values) / (len(rows) - ddof)) ** 0.5
                others = {i: (sum(values) - x[i]) / (len(rows) - 1) for i in rows}
                for i in rows:
                    expected[i] = {"zscore": (x[i] - mean) / (std + 1e-6), "center": x[i] - mean, "rloo": x[i] - others[i]}[
                        norm
                    ]
        np.testing.assert_allclose(compare(x, key, present, norm=norm, ddof=ddof), expected, rtol=1e-12, atol=1e-12)


def test_unknown_norm_is_named():
    with pytest.raises(ValueError, match="'z' is not one of zscore"):
        one_group([1.0], norm="z")


# outcome and routed


def test_grpo_and_dr_grpo():
    rollouts = made(pairs(4), total=[1, 0, 0, 1])
    np.testing.assert_allclose(outcome("total")(rollouts)[:, 0], [0.8660, -0.8660, -0.8660, 0.8660], **ROUND)
    np.testing.assert_allclose(outcome("total", norm="center")(rollouts)[:, 1], [0.5, -0.5, -0.5, 0.5])


def test_channels_normalised_apart_and_summed_first_differ():
    rollouts = made(pairs(4), a=[1, 0, 0, 1], b=[0.5, 1, 0, 0.5])
    apart = total(outcome("a"), outcome("b"))(rollouts)[:, 0]
    np.testing.assert_allclose(apart, [0.8660, 0.3587, -2.0908, 0.8660], **ROUND)
    np.testing.assert_allclose(outcome("a", "b")(rollouts)[:, 0], [0.7071, 0, -1.4142, 0.7071], **ROUND)


FOUR = [[TOOL, SUMMARY]] * 3 + [[SUMMARY, ABSENT]]
R_TOOL, R_SUM = [1.0, 0.85, 0.70, 0.0], [0.5, 0.75, 1.0, -0.5]


def test_group_of_four_with_an_omission():
    rollouts = made(FOUR, tool=R_TOOL, summary=R_SUM, total=[1.5, 1.6, 1.7, -0.5])
    exclude = routed("tool", TOOL)(rollouts)
    np.testing.assert_allclose(exclude[:, 0], [0.999993, 0, -0.999993, 0], **CLOSE)
    np.testing.assert_array_equal(exclude[:, 1], 0)
    summary = routed("summary", SUMMARY)(rollouts)
    np.testing.assert_allclose([*summary[:3, 1], summary[3, 0]], [0.095058, 0.475292, 0.855526, -1.425877], **CLOSE)
    assert summary[3, 1] == 0
    grpo = outcome("total")(rollouts)
    np.testing.assert_allclose(grpo[:, 0], [0.403543, 0.498495, 0.593446, -1.495484], **CLOSE)


@pytest.mark.parametrize("absent", [0.0, 0.9, NAN])
def test_floor_enters_absent_members_as_zero(absent):
    rollouts = made(FOUR, tool=[*R_TOOL[:3], absent], summary=R_SUM)
    floor = routed("tool", TOOL, presence="floor")(rollouts)
    np.testing.assert_allclose(floor[:3, 0], [0.819587, 0.480447, 0.141308], **CLOSE)
    np.testing.assert_array_equal(floor[3], 0)  # no tool tokens, nothing to receive
    np.testing.assert_array_equal(routed("tool", TOOL)(rollouts, Options(presence="floor")), floor)
    flat = compare(np.array([*R_TOOL[:3], 0.0]), np.zeros(4, int), np.ones(4, bool))
    np.testing.assert_allclose(flat[3], -1.441342, **CLOSE)


def test_floor_leaves_an_unscored_rollout_out():
    rollouts = made([*FOUR, [SUMMARY, ABSENT]], tool=[*R_TOOL, NAN], summary=[*R_SUM, NAN])
    np.testing.assert_allclose(routed("tool", TOOL, presence="floor")(rollouts)[:3, 0], [0.819587, 0.480447, 0.141308], **CLOSE)


def test_none_takes_absent_members_at_their_score():
    """A right abstention (1.0) must push a needless call down, which neither exclude nor floor can do."""
    kind = [[SUMMARY, ABSENT], [SUMMARY, ABSENT], [TOOL, SUMMARY]]
    rollouts = made(kind, tool=[1.0, 1.0, 0.45], summary=[1.0, 1.0, 1.0])
    assert routed("tool", TOOL)(rollouts)[2, 0] == 0
    assert routed("tool", TOOL, presence="floor")(rollouts)[2, 0] > 0
    assert routed("tool", TOOL, presence="none")(rollouts)[2, 0] < -1


def test_abstentions_count_in_tool_statistics_alone():
    kind = [[SUMMARY, ABSENT], [TOOL, SUMMARY], [TOOL, SUMMARY]]
    rollouts = made(kind, tool=[1.0, 0.45, 0.45], summary=[1, 0, 0], labels={"abstained": [True, False, False]})
    np.testing.assert_allclose(routed("tool", TOOL)(rollouts)[:, 0], [0, -0.5773, -0.5773], **ROUND)
    np.testing.assert_array_equal(routed("tool", TOOL, presence="floor")(rollouts), routed("tool", TOOL)(rollouts))
    plain = made(kind, tool=[1.0, 0.45, 0.45], summary=[1, 0, 0])
    np.testing.assert_array_equal(routed("tool", TOOL)(plain), 0)
    np.testing.assert_array_equal(routed("summary", SUMMARY)(rollouts), routed("summary", SUMMARY)(plain))


def test_lone_caller():
    kind = [[TOOL, SUMMARY]] + [[SUMMARY, ABSENT]] * 3
    rollouts = made(kind, tool=[1, 0, 0, 0], summary=[0.75, -0.5, -0.5, -0.5])
    assert routed("tool", TOOL)(rollouts)[0, 0] == 0
    np.testing.assert_allclose(routed("tool", TOOL, presence="floor")(rollouts)[0, 0], 1.499997, **CLOSE)
    np.testing.assert_allclose(routed("summary", SUMMARY)(rollouts)[0, 1], 1.499998, **CLOSE)


def test_weights_act_after_normalisation():
    rollouts = made(pairs(4), tool=[0.9, 0.7, 0.5, 0.3], summary=[0, 0.25, 0.75, 1])
    plain = routed("tool", TOOL)(rollouts)
    np.testing.assert_allclose(routed("tool", TOOL)(rollouts, Options(tool_weight=3.0)), 3 * plain)
    np.testing.assert_array_equal(routed("tool", TOOL)(rollouts, Options(summary_weight=3.0)), plain)


def test_a_kind_gets_one_value_on_all_its_segments():
    rollouts = made([[TOOL, TOOL, SUMMARY], [TOOL, SUMMARY, ABSENT]], tool=[1, 0], summary=[0, 1])
    np.testing.assert_allclose(routed("tool", TOOL)(rollouts), [[0.7071, 0.7071, 0], [-0.7071, 0, 0]], **ROUND)


# aligned, table, whitened, scaled, rarity


def test_segment_decomposition():
    rollouts = made(pairs(2), segment=[[1, 0], [0, 1]])
    np.testing.assert_allclose(aligned("segment")(rollouts), [[0.7071, -0.7071], [-0.7071, 0.7071]], **ROUND)
    np.testing.assert_array_equal(outcome("segment")(rollouts), 0)  # summed over segments
    blend = made(pairs(2), segment=[[1, 0], [0, 0.5]])
    np.testing.assert_allclose(
        aligned("segment", norm="center", transform=blended(0.5))(blend), [[0.3125, -0.0625], [-0.3125, 0.0625]]
    )
    np.testing.assert_allclose(aligned("segment", norm="center")(blend), [[0.5, -0.25], [-0.5, 0.25]])


def test_gigpo_anchor_states():
    rollouts = made(pairs(2), final=[[0, 1], [0, 0]], labels={"state": [[0, 1], [0, 2]]})
    returns = discounted(0.95)(np.array([[0.0, 1], [0, 0]]), np.ones((2, 2), bool))
    np.testing.assert_allclose(returns, [[0.95, 1], [0, 0]])
    episode = made(pairs(2), total=[1, 0], final=[[0, 1], [0, 0]], labels={"state": [[0, 1], [0, 2]]})
    for norm, expected in (("center", [[0.975, 0.5], [-0.975, -0.5]]), ("zscore", [[1.4142, 0.7071], [-1.4142, -0.7071]])):
        f = total(outcome("total", norm=norm), aligned("final", by="state", norm=norm, transform=discounted(0.95)))
        np.testing.assert_allclose(f(episode), expected, rtol=0, atol=1e-4)
    assert aligned("final", by="state", transform=discounted(0.95))(rollouts)[0, 1] == 0  # a lone state


def test_summaries_are_compared_among_equal_calls():
    summary = [0.2, 0.6, 0.9, 1.0, 0.4]  # the first two made the same calls, the next two others, the last its own
    rollouts = made(pairs(5), tool=[0] * 5, summary=summary, labels={"state": [[0, 1], [0, 1], [0, 2], [0, 2], [0, 3]]})
    found = anchored("summary", SUMMARY, by="state")(rollouts, Options(summary_weight=2.0))
    r = 2 * 0.7071
    np.testing.assert_allclose(found[:, 1], [-r, r, -r, r, 0], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(found[:, 0], 0)  # the calls share their state too, and get nothing
    group = algorithm("slca").credit(rollouts)
    assert group[3, 1] > group[2, 1] > 0 > group[4, 1]  # while in the group both of the better calls' summaries are good ones


def test_gigpo_with_the_official_stepwise_deviation():
    episode = made(pairs(2), total=[1, 0], final=[[0, 1], [0, 0]], labels={"state": [[0, 1], [0, 2]]})
    f = total(outcome("total", stepwise=True), aligned("final", by="state", transform=discounted(0.95)))
    np.testing.assert_allclose(f(episode), [[1.5731, 0.8660], [-1.5731, -0.8660]], **ROUND)
    longer = made([[TOOL, TOOL, SUMMARY], [SUMMARY, ABSENT, ABSENT]], total=[1, 0])
    found = outcome("total", stepwise=True)(longer)
    np.testing.assert_allclose(found, [[0.5, 0.5, 0.5], [-1.5, 0, 0]], rtol=1e-5)  # three votes against one


def test_equal_labels_of_other_groups_do_not_meet():
    rollouts = made([[TOOL]] * 4, group=[0, 0, 1, 1], final=[[1], [0], [5], [5]], labels={"state": [[0]] * 4})
    np.testing.assert_allclose(aligned("final", by="state")(rollouts)[:, 0], [0.7071, -0.7071, 0, 0], **ROUND)


def test_triage_roles():
    rollouts = made([[TOOL, TOOL]] * 2, total=[1, -1], labels={"role": [[0, 3], [1, 2]]})
    constants = table("role", (1.0, 0.5, -0.1, -0.5))
    plain = total(outcome("total", norm="center"), constants, weights=(1.0, 0.5))
    np.testing.assert_allclose(plain(rollouts), [[1.5, 0.75], [-0.75, -1.05]])
    np.testing.assert_allclose(whitened(plain)(rollouts), [[1.3189, 0.6060], [-0.8199, -1.1050]], **ROUND)


def test_cue_moves_credit_to_rare_cells_and_keeps_the_sum():
    rollouts = made([[SUMMARY]] * 6, total=[1, 1, 1, 1, 0, 0], labels={"cell": [0, 0, 0, 1, 0, 2]})
    base = outcome("total")(rollouts)[:, 0]
    np.testing.assert_allclose(base[0], 0.6455, **ROUND)
    factors = rarity("cell", "total", 0.8)(rollouts)[:, 0]
    np.testing.assert_allclose(factors, [0.7396, 0.7396, 0.7396, 1.7812, 1, 1], **ROUND)
    cue = scaled(outcome("total"), rarity("cell", "total", 0.8))(rollouts)[:, 0]
    np.testing.assert_allclose(cue, [0.4774, 0.4774, 0.4774, 1.1497, -1.2910, -1.2910], **ROUND)
    np.testing.assert_allclose(cue[:4].sum(), base[:4].sum())
    np.testing.assert_allclose(rarity("cell", "total", 1.0)(rollouts)[:4, 0], [2 / 3, 2 / 3, 2 / 3, 2.0])
    np.testing.assert_array_equal(rarity("cell", "total", 0.0)(rollouts), 1)


def test_cells_are_counted_inside_a_group():
    one = made([[SUMMARY]] * 4, group=[0, 0, 1, 1], total=[1, 1, 1, 1], labels={"cell": [0, 1, 0, 0]})
    np.testing.assert_allclose(rarity("cell", "total")(one)[:, 0], 1)


def test_gdpo_scaling_keeps_constant_groups_at_zero():
    kind = [[TOOL, SUMMARY, ABSENT]] * 4 + [[TOOL, TOOL, SUMMARY]] * 4
    rollouts = made(kind, [0] * 4 + [1] * 4, a=[1, 0, 0, 1, 0.3, 0.3, 0.3, 0.3], b=[0.5, 1, 0, 0.5, 0.1, 0.1, 0.1, 0.1])
    base = total(outcome("a"), outcome("b"))
    found = rescaled(base)(rollouts)
    np.testing.assert_array_equal(found[4:], 0)
    values = base(rollouts)[:, 0]
    np.testing.assert_allclose(found[:4, 0], values[:4] / (values.std(ddof=1) + 1e-4))


def test_step_weights_scale_the_segment():
    rollouts = made(pairs(3), layered=[0, 0.5, 1], labels={"step": [[0.5, 1.5]] * 3})
    found = scaled(outcome("layered"), labelled("step"))(rollouts)
    np.testing.assert_allclose(found, np.outer([-1, 0, 1], [0.5, 1.5]), **ROUND)
    binary = made(pairs(3), layered=[0, 1, 1])
    np.testing.assert_allclose(outcome("layered")(binary)[:, 0], [-1.1547, 0.5774, 0.5774], **ROUND)


def test_a_part_of_weight_zero_is_not_read():
    f = total(outcome("total"), outcome("missing"), weights=(1.0, 0.0))
    assert f.channels == ("total",)
    f(made(pairs(2), total=[0, 1]))


def test_missing_channels_and_labels_are_named():
    rollouts = made(pairs(2), total=[0, 1])
    with pytest.raises(KeyError, match="'tool' is missing; these rollouts have total"):
        routed("tool", TOOL)(rollouts)
    with pytest.raises(KeyError, match="'role' is missing"):
        table("role", (1.0,))(rollouts)
    with pytest.raises(ValueError, match="one score a segment"):
        aligned("total")(rollouts)
    with pytest.raises(ValueError, match="one score a rollout"):
        routed("segment", TOOL)(made(pairs(2), segment=[[0, 1], [1, 0]]))


def test_options_come_from_the_config(config):
    config.credit.norm, config.credit.tool_weight = "center", 2.0
    assert Options.of(config.credit) == Options(norm="center", tool_weight=2.0)
    with pytest.raises(ValueError, match=r"credit\.presence"):
        Options(presence="sometimes")
