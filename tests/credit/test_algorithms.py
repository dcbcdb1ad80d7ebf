"""The table: the hand cases of every record, names, joins, checks."""

from dataclasses import replace

import numpy as np
import pytest

from slca.credit.algorithms import ALGORITHMS, algorithm, check
from slca.credit.credit import Options
from slca.credit.estimators import outcome, rescaled
from slca.rewards.annotate import CHANNELS, LABELS
from slca.types import ABSENT, SUMMARY, TOOL, Rollouts
from tests.credit.rollouts import anything, made, pairs

ROUND = dict(rtol=0, atol=6e-5)
RECORDS = list(ALGORITHMS.values())
EVERY = pytest.mark.parametrize("record", RECORDS, ids=list(ALGORITHMS))


def credit(name, rollouts):
    return algorithm(name).credit(rollouts)


# Hand cases


def test_slca_conflict():
    rollouts = made(pairs(2), tool=[1, 0], summary=[0, 1], total=[1, 1])
    np.testing.assert_allclose(credit("slca", rollouts), [[0.7071, -0.7071], [-0.7071, 0.7071]], **ROUND)
    np.testing.assert_array_equal(credit("grpo", rollouts), 0)


CONFLICT = dict(tool=[0.9, 0.7, 0.5, 0.3], summary=[0, 0.25, 0.75, 1], total=[0.9, 0.95, 1.25, 1.3])


def test_full_conflict():
    rollouts = made(pairs(4), **CONFLICT)
    np.testing.assert_allclose(credit("slca", rollouts)[:, 0], [1.161891, 0.387297, -0.387297, -1.161891], rtol=0, atol=2e-5)
    np.testing.assert_allclose(credit("grpo", rollouts)[:, 0], [-0.979791, -0.734843, 0.734843, 0.979791], rtol=0, atol=1e-5)


def test_gdpo():
    """Before whitening .066448, -.160425 and their opposites (deviation .141778); with weights 2 and .5, of z-scores 1.161891, .387297
    and -1.095445, -.547723: 1.776059, .500733 (deviation 1.506679)."""
    rollouts = made(pairs(4), **CONFLICT)
    first, second = 0.066448 / 0.141878, 0.160425 / 0.141878
    expected = np.array([first, -second, second, -first])
    np.testing.assert_allclose(credit("gdpo", rollouts), np.stack([expected, expected], 1), rtol=0, atol=2e-5)
    weighted = replace(ALGORITHMS["gdpo"], options=Options(tool_weight=2.0, summary_weight=0.5)).credit(rollouts)
    np.testing.assert_allclose(weighted[:, 1], [1.178713, 0.332320, -0.332320, -1.178713], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "success, action, tool, text",
    [
        ([1, 0, 0, 1], [1, 0.5, 0, 0.5], [1, -0.5, -1, 0.5], [0.5, -0.5, -0.5, 0.5]),
        ([1, 0, 0, 1], [0.5, 1, 0, 0.5], [0.5, 0, -1, 0.5], [0.5, -0.5, -0.5, 0.5]),
    ],
)
def test_toolpo(success, action, tool, text):
    found = credit("toolpo", made(pairs(4), success=success, action=action))
    np.testing.assert_allclose(found, np.stack([tool, text], 1))


def test_toolpo_of_the_slca_repository_is_normalised():
    """z(1, 0, 0, 1) = +-.866025 on every token; z(1, .5, 0, .5) = 1.224745, 0, -1.224745, 0 on those of calls as well."""
    rollouts = made(pairs(4), success=[1, 0, 0, 1], action_share=[1, 0.5, 0, 0.5])
    text = np.array([0.866025, -0.866025, -0.866025, 0.866025])
    tool = [2.090770, -0.866025, -2.090770, 0.866025]
    np.testing.assert_allclose(credit("toolpo_slca_repo", rollouts), np.stack([tool, text], 1), rtol=0, atol=5e-6)


def test_toolpo_compares_actions_among_all_rollouts():
    rollouts = made([[TOOL, SUMMARY], [SUMMARY, ABSENT]], success=[1, 1], action=[1, 0])
    np.testing.assert_allclose(credit("toolpo", rollouts), [[0.5, 0], [0, 0]])


def test_rltr():
    rollouts = made(pairs(4), plan=[1, 2 / 3 - 0.1, -0.2, -1])
    found = credit("rltr", rollouts)
    np.testing.assert_allclose(found[:, 0], [1.0312, 0.5393, -0.3311, -1.2394], **ROUND)
    np.testing.assert_array_equal(found[:, 1], 0)


def test_support_control_has_slcas_statistics_on_the_total():
    rollouts = made([[TOOL, SUMMARY]] * 3 + [[SUMMARY, ABSENT]], total=[1.5, 1.6, 1.7, -0.5])
    found = credit("support_control", rollouts)
    np.testing.assert_allclose(found[:3, 0], [-0.99999, 0, 0.99999], rtol=0, atol=1e-4)  # the omission is not in it
    np.testing.assert_allclose(found[:3, 1], outcome("total")(rollouts)[:3, 0])


def test_tool_only_global():
    rollouts = made(pairs(2), total=[1, 0])
    np.testing.assert_allclose(credit("tool_only_global", rollouts), [[0.7071, 0], [-0.7071, 0]], **ROUND)


def test_matchtir_dual():
    rollouts = made(pairs(2), segment=[[1.0, 0.0], [0.0, 0.5]])
    # sums 1, 0.5; returns by turn: (1, 0.45) and (0, 0.5)
    np.testing.assert_allclose(credit("matchtir_dual", rollouts), [[0.7071, 0], [-0.7071, 0]], **ROUND)


def test_a_rollout_that_died_in_its_first_turn_is_no_rollout_of_reward_0():
    rollouts = made([*pairs(2), [ABSENT, ABSENT]], segment=[[1.0, 0.0], [0.0, 0.5], [np.nan, np.nan]])
    np.testing.assert_allclose(credit("matchtir_dual", rollouts), [[0.7071, 0], [-0.7071, 0], [0, 0]], **ROUND)


def test_self_conditioned_routes_unsolved_groups():
    kind = [[TOOL, SUMMARY]] * 6
    rollouts = made(
        kind, [0, 0, 0, 1, 1, 1], total=[1, 0, 0, 0.3, 0.1, 0.2], solved=[1, 0, 0, 0, 0, 0],
        peer=[np.nan, np.nan, np.nan, 0.2, 0.6, np.nan],
    )  # fmt: skip
    found = credit("self_conditioned", rollouts)
    np.testing.assert_allclose(found[:3], outcome("total")(rollouts)[:3])
    np.testing.assert_allclose(found[3:, 0], [-0.0707, 0.0707, 0], **ROUND)


def test_dapo_adds_the_overlong_penalty_to_the_reward():
    rollouts = made(pairs(2), total=[1, 1], overlong=[0, -1])
    np.testing.assert_allclose(credit("dapo", rollouts)[:, 0], [0.7071, -0.7071], **ROUND)


# Names, joins, checks


def test_mix_is_slca_at_zero_and_grpo_to_the_bit_at_one():
    rollouts = anything(3)
    assert credit("mix@1", rollouts).tobytes() == credit("grpo", rollouts).tobytes()
    assert credit("mix@0", rollouts).tobytes() == credit("slca", rollouts).tobytes()
    half = 0.5 * credit("slca", rollouts) + 0.5 * credit("grpo", rollouts)
    np.testing.assert_allclose(credit("mix@0.5", rollouts), half)
    np.testing.assert_array_equal(credit("mix", rollouts), credit("mix@0.5", rollouts))


def test_parameters_and_joins():
    assert algorithm("llds@0.05").terms == {"llds": {"weight": 0.05}}
    joined = algorithm("slca+llds+self_conditioned")
    assert joined.rule is ALGORITHMS["slca"].rule and joined.terms == {"llds": {"weight": 0.2}}
    assert {"tool", "summary", "teacher_kl"} <= set(joined.needs) and "total" not in joined.needs
    assert joined.locked and algorithm("grpo+rebel").whole_groups
    assert not algorithm("mix@0.5").locked and algorithm("mix@0").locked


@pytest.mark.parametrize(
    "name, message",
    [
        ("sapo", "unknown algorithm 'sapo'; known: .*search_sapo"),
        ("slca@2", "slca has no parameter"),
        ("mix@2", "must lie in 0..1"),
        ("segment_decomposed@3", "must lie in 0..1"),
        ("mix@x", "finite number"),
        ("mix@-1", "finite number"),
        ("slca+grpo", "grpo only changes the credit"),
        ("slca+gspo", "breaks the segment lock"),
        ("slca_floor+espo", "breaks the segment lock"),
        ("rltr+gspo", "breaks the segment lock"),
        ("slca+rebel", "rebel regresses whole rollouts"),
        ("gspo+dapo", "both set aggregation, clip_high, clip_low"),
        ("gear+oar_g", "both bring a focus"),
        ("slca+", "unknown algorithm ''"),
    ],
)
def test_refused_names(name, message):
    with pytest.raises(ValueError, match=message):
        algorithm(name)


def test_the_config_sets_the_arithmetic(config):
    config.credit.update(norm="center", tool_weight=2.0, presence="floor")
    rollouts = made([[TOOL, SUMMARY]] * 2 + [[SUMMARY, ABSENT]], tool=[1, 0.5, 0], summary=[1, 0, 0])
    np.testing.assert_allclose(algorithm("slca", config.credit).credit(rollouts)[:2, 0], [1.0, 0.0])


def test_needs_fail_before_sampling():
    for record in RECORDS:
        check(
            record, CHANNELS, LABELS, ["peer", "teacher_kl", "reference", "entropy", "importance", "gap", "sign", "surprisal"]
        )
    with pytest.raises(ValueError, match="'gear' needs entropy, teacher_kl, which nothing"):
        check(ALGORITHMS["gear"], CHANNELS, LABELS)
    with pytest.raises(ValueError, match="needs plan"):
        check(ALGORITHMS["rltr"], ["tool"])
    with pytest.raises(ValueError, match="breaks the segment lock"):
        check(ALGORITHMS["slca"], CHANNELS, ratio="sequence")
    check(ALGORITHMS["grpo"], CHANNELS, ratio="sequence")


def test_every_record_says_where_it_comes_from():
    for name, record in ALGORITHMS.items():
        assert record.name.split("@")[0] == name and len(record.doc) > 40


def test_inferred_parts_are_named():
    for name in ("gear", "segment_decomposed", "triage", "search_sapo", "signal"):
        assert "inferred" in ALGORITHMS[name].doc.lower()


@EVERY
def test_every_record_only_names_loss_fields_that_exist(record, config):
    assert set(record.loss) <= set(config.loss.keys())
    for key, value in record.loss.items():
        assert type(config.loss[key]) is type(value)


OTHER = dict(norm="center", ddof=0, eps=0.5, std_floor=9.0, presence="none", tool_weight=2.0, summary_weight=0.5)


@EVERY
@pytest.mark.parametrize("option", OTHER)
def test_a_record_reads_the_options_that_it_says(record, option):
    rollouts = anything(6)
    rollouts.labels["abstained"] = np.arange(len(rollouts.group)) == 2
    changed = replace(record, options=Options(**{option: OTHER[option]}))
    moved = not np.array_equal(changed.credit(rollouts), record.credit(rollouts))
    assert moved == (option in record.rule.options), record.rule.options
    assert changed.unread == ({} if moved else {option: OTHER[option]})


@EVERY
@pytest.mark.parametrize("norm", ["zscore", "batch_std"])
def test_a_record_says_whether_its_credit_needs_the_whole_batch(record, norm):
    """The credit of half of the groups is half of the credit, unless something is compared over the batch (or by its focus)."""
    record = replace(record, options=Options(norm=norm))
    rollouts = anything(8)
    whole, parts = record.credit(rollouts), np.zeros(rollouts.kind.shape)
    for half in (rollouts.group < 2, rollouts.group >= 2):
        rewards, labels = ({k: v[half] for k, v in named.items()} for named in (rollouts.rewards, rollouts.labels))
        parts[half] = record.credit(Rollouts(rollouts.group[half], rollouts.kind[half], rewards, labels))
    differs = not np.allclose(whole, parts, rtol=1e-12, atol=1e-12)
    assert record.whole_batch == (differs or record.name == "self_conditioned")


def test_records_that_are_another_one_at_the_old_policy_ask_for_a_second_update():
    """Terms that are 0 there, a clipping of ratios that are 1, and REBEL, whose first step is Dr. GRPO's."""
    two = {"llds", "search_sapo", "gspo", "espo", "cispo", "rebel"}
    assert {name for name, record in ALGORITHMS.items() if record.updates > 1} == two
    assert algorithm("slca+llds").updates == algorithm("llds@0.1+gear").updates == 2 and algorithm("slca").updates == 1


def test_rescaled_does_not_move_zero():
    rollouts = made(pairs(2), tool=[1, 1], summary=[0, 0], total=[1, 1])
    np.testing.assert_array_equal(rescaled(outcome("tool"))(rollouts), 0)
