"""annotate: channels, labels, the omission guard, unscored rollouts, several user turns, a judge that fails."""

import numpy as np
import pytest

from slca.credit.algorithms import ALGORITHMS, algorithm
from slca.rewards.annotate import CHANNELS, LABELS, annotate, metrics, step_weights
from slca.rewards.scores import scores
from slca.types import ABSENT, SUMMARY, TOOL, ToolCall
from tests.rewards.episodes import ANSWER, GOLD, RESULT, calls, episode, good, says, task

WRONG = ToolCall("weather", {"city": "Rome"})
OMITS = [says("It is surely warm in Oslo.")]


def test_a_perfect_episode(config):
    found = scores(good(), config)
    for name in (
        "process",
        "summary",
        "argmatch",
        "success@0.9",
        "success@1.0",
        "solved",
        "success",
        "action_share",
        "plan",
        "answered",
    ):
        assert found[name] == 1.0, name
    for name in ("surplus", "missing", "duplicates", "errors", "omitted", "overlong"):
        assert found[name] == 0.0, name
    assert (found["turns"], found["tool_turns"], found["calls"]) == (2, 1, 1)
    assert (found["tokens/tool"], found["tokens/summary"], found["tokens/environment"]) == (4, 4, 2)


def test_success_tolerates_rounding(config):
    config.reward.abstain = "paper"
    found = scores(episode(task(gold=[], facts=[]), [says("I cannot do that for you.")]), config)
    assert found["process"] == pytest.approx(0.9) and found["success@0.9"] == 1.0 and found["success@1.0"] == 0.0
    assert found["summary"] == 0.0  # as released: no tool result, no grade
    config.reward.abstain = "sane"
    found = scores(episode(task(gold=[], facts=[]), [says("I cannot do that for you.")]), config)
    assert found["process"] == found["summary"] == found["success@1.0"] == 1.0


def test_shapes_channels_and_labels(config):
    rows = [good(), episode(task(), [calls(GOLD), calls(GOLD), ANSWER], sample=1), episode(task(), OMITS, sample=2)]
    r = annotate(rows, config)
    np.testing.assert_array_equal(r.kind, [[TOOL, SUMMARY, ABSENT], [TOOL, TOOL, SUMMARY], [SUMMARY, ABSENT, ABSENT]])
    np.testing.assert_array_equal(r.tokens, np.where(r.kind == ABSENT, 0, 4))
    assert set(CHANNELS) <= set(r.rewards) and set(LABELS) <= set(r.labels)
    assert all(r.rewards[name].shape == ((3, 3) if name in ("segment", "final") else (3,)) for name in CHANNELS)
    np.testing.assert_allclose(r.rewards["tool"], [1.0, 11 / 12, 0.0])
    np.testing.assert_allclose(r.rewards["summary"], [1.0, 1.0, -0.5])
    np.testing.assert_allclose(r.rewards["total"], [2.0, 23 / 12, -0.5])
    np.testing.assert_allclose(r.rewards["final"], [[0, 2, np.nan], [0, 0, 23 / 12], [-0.5, np.nan, np.nan]])
    np.testing.assert_allclose(r.rewards["segment"], [[1, 1, np.nan], [1, 0, 1], [-0.5, np.nan, np.nan]])
    np.testing.assert_array_equal(r.labels["role"], [[0, 2, -1], [0, 3, 2], [2, -1, -1]])
    assert r.labels["state"][0, 0] == r.labels["state"][1, 0] == r.labels["state"][2, 0]
    assert r.labels["state"][0, 1] == r.labels["state"][1, 1]
    np.testing.assert_array_equal(r.labels["version"], ["hierr-1/rule-1"] * 3)


def test_every_record_but_the_probed_ones_runs_on_what_annotate_gives(config):
    r = annotate([good(), episode(task(), [calls(WRONG), ANSWER], sample=1)], config)
    for record in ALGORITHMS.values():
        if "peer" not in record.rule.channels:
            credit = record.credit(r)
            assert credit.shape == r.kind.shape and credit.dtype == np.float64 and np.isfinite(credit).all(), record.name


@pytest.mark.parametrize(
    "how, tool, summary, total",
    [("route_summary", 0, -0.5, -0.5), ("route_all", -0.5, -0.5, -0.5), ("subtract", 0, -0.5, -0.5)],
)
def test_omission(config, how, tool, summary, total):  # G9: rewards are named columns, summed once
    config.credit.omission = how
    r = annotate([episode(task(), OMITS)], config)
    assert (r.rewards["tool"][0], r.rewards["summary"][0], r.rewards["total"][0]) == (tool, summary, total)


def test_subtract_keeps_what_the_answer_was_worth(config):
    config.credit.omission, config.reward.summary = "subtract", "judge"
    history = task(gold=((GOLD,),))
    history.messages.insert(0, {"role": "tool", "content": RESULT.text})
    r = annotate([episode(history, OMITS)], config, judge=lambda asked: [0.75] * len(asked))
    assert r.rewards["summary"][0] == 0.25 and r.rewards["total"][0] == 0.25


def test_unusable_calls_are_omissions_unless_the_released_test_is_asked_for(config):
    junk = [calls(errors=1), says("It is surely warm in Oslo.")]
    assert annotate([episode(task(), junk)], config).rewards["total"][0] == -0.5
    config.credit.omission_test = "tag"
    assert annotate([episode(task(), junk)], config).rewards["total"][0] == 0.0


def test_no_omission_where_no_call_is_due(config):
    r = annotate([episode(task(gold=[], facts=[]), [says("I cannot do that for you.")])], config)
    assert r.rewards["tool"][0] == r.rewards["summary"][0] == 1.0


@pytest.mark.parametrize("end", ["sim_failed", "tool_timeout", "dead"])
def test_unscored_episodes_are_nan_everywhere_and_get_nothing(config, end):
    rows = [good(), episode(task(), [calls(WRONG), ANSWER]), episode(task(), [calls(GOLD), ANSWER], end=end)]
    r = annotate(rows, config)
    alone = annotate(rows[:2], config)
    assert all(np.isnan(values[2]).all() for values in r.rewards.values())
    for name, record in ALGORITHMS.items():
        if "peer" not in record.rule.channels:
            credit = record.credit(r)
            np.testing.assert_array_equal(credit[2], 0)
            np.testing.assert_array_equal(credit[:2], record.credit(alone), err_msg=name)


def test_all_unscored_or_none_at_all(config):
    r = annotate([episode(task(), [], end="dead")], config)
    assert r.kind.shape == (1, 0) and np.isnan(r.rewards["tool"]).all()
    assert annotate([], config).kind.shape == (0, 0)
    assert ALGORITHMS["slca"].credit(annotate([], config)).shape == (0, 0)


def test_two_user_turns_are_averaged(config):
    two = task(
        gold=[[GOLD], [WRONG]], facts=[["17.4"], ["21"]], followups=["And in Rome?"], kind="two_turn"
    )  # fmt: skip
    rome = RESULT.__class__('{"city": "Rome", "temperature": 21}')
    turns = [calls(GOLD), ANSWER, calls(WRONG), says("It is 21 degrees in Rome.")]
    seen = [[RESULT], [], [rome], []]
    r = annotate([episode(two, turns, seen, user_turn=[0, 0, 1, 1])], config)
    assert r.rewards["summary"][0] == 1.0 and list(r.kind[0]) == [TOOL, SUMMARY, TOOL, SUMMARY]
    half = annotate([episode(two, turns[:2], seen[:2], end="max_turns")], config)
    assert half.rewards["summary"][0] == 0.5  # the second question was never answered
    bad = annotate([episode(two, [*turns[:3], says("It is 35 degrees in Madrid.")], seen, user_turn=[0, 0, 1, 1])], config)
    np.testing.assert_allclose(bad.rewards["segment"][0], [1, 1, 1, 0])
    assert bad.rewards["summary"][0] == 0.5


def test_position_segments_give_a_cut_off_call_the_summary_kind(config):
    config.credit.segmenter = "position"
    r = annotate([episode(task(), [calls(GOLD), calls(WRONG)], end="max_turns")], config)
    np.testing.assert_array_equal(r.kind, [[TOOL, SUMMARY]])
    assert r.rewards["summary"][0] == 0.0


def test_judge_grades_and_failures(config):
    config.reward.summary = "judge"
    rows = [good(), good(), episode(task(), OMITS), good()]
    asked = []

    def judge(answers):
        asked.extend(answers)
        return [0.75, float("nan"), 0.25]

    judge.version = "m-abc"
    r = annotate(rows, config, judge=judge)
    np.testing.assert_array_equal(r.rewards["summary"], [0.75, np.nan, -0.5, 0.25])
    assert np.isnan(r.rewards["total"][1]) and r.rewards["tool"][1] == 1.0  # only the judged channels are missing
    assert r.labels["version"][0] == "hierr-1/m-abc"
    assert len(asked) == 3 and asked[0].text == ANSWER.text and asked[0].results == (RESULT,)  # an omission needs no judge
    config.reward.judge_failure = "zero"
    np.testing.assert_array_equal(annotate(rows, config, judge=judge).rewards["summary"], [0.75, 0, -0.5, 0.25])
    with pytest.raises(ValueError, match=r"reward.summary=judge: no judge"):
        annotate(rows, config)


def test_the_version_names_every_model_that_scored(config):
    class Grader:
        version = "m-1"

        def completeness(self, episodes):
            return [1.0] * len(episodes)

        def roles(self, episodes):
            return [[0] * len(e.turns) for e in episodes]

    g = Grader()
    assert (
        annotate([good()], config, checker=g.completeness, roles=g.roles).labels["version"][0]
        == "hierr-1/rule-1/checker=m-1/roles=m-1"
    )
    assert (
        annotate([good()], config, roles=lambda rows: [[0] * len(e.turns) for e in rows])
        .labels["version"][0]
        .endswith("/roles=unnamed")
    )
    config.reward.summary = "judge"
    assert annotate([good()], config, judge=lambda asked: [1.0]).labels["version"][0] == "hierr-1/unnamed"


def test_the_soft_overlong_penalty_follows_the_config(config):
    config.rollout.max_response_tokens = 12  # the episode has 10 response tokens
    assert annotate([good()], config).rewards["overlong"][0] == pytest.approx(-0.4 / 2.4)
    config.reward.update(overlong_share=0.5, overlong_penalty=3.0)
    assert annotate([good()], config).rewards["overlong"][0] == pytest.approx(-3 * 4 / 6)


def test_efficiency_is_off_by_default_and_never_below_zero(config):
    rows = [episode(task(), [calls(GOLD), calls(GOLD), ANSWER])]
    config.reward.efficiency = "dup_penalty"
    assert annotate(rows, config).rewards["tool"][0] == pytest.approx(11 / 12 - 0.05)
    config.reward.efficiency = "turn_cost"
    assert annotate(rows, config).rewards["tool"][0] == pytest.approx(11 / 12 - 0.10)
    config.reward.efficiency_cost = 9.0
    assert annotate(rows, config).rewards["tool"][0] == 0.0
    config.reward.efficiency = "vibes"
    with pytest.raises(ValueError, match=r"reward.efficiency: 'vibes'"):
        annotate(rows, config)


def test_a_sparse_execution_reward_pays_for_solved_alone(config):
    wrong = ToolCall(GOLD.name, dict.fromkeys(GOLD.arguments, "Atlantis"))
    rows = [good(), episode(task(), [calls(wrong), ANSWER])]
    assert 0 < annotate(rows, config).rewards["tool"][1] < 1
    config.reward.execution = "solved"
    assert annotate(rows, config).rewards["tool"].tolist() == [1.0, 0.0]
    config.reward.execution = "none"  # and the process is measured all the same
    found = annotate(rows, config).rewards
    assert found["tool"].tolist() == [0.0, 0.0] and found["total"].tolist() == found["summary"].tolist()
    assert scores(good(), config)["process"] > 0.9
    config.reward.execution = "luck"
    with pytest.raises(ValueError, match=r"reward.execution: 'luck'"):
        annotate(rows, config)


def test_step_weights_have_token_mean_one():
    np.testing.assert_allclose(step_weights([1, 3], [2, 2]), [0.5, 1.5])
    weights = step_weights([1.0, 0.25, 0.5], [7, 1, 4])
    assert (weights * [7, 1, 4]).sum() / 12 == pytest.approx(1)
    np.testing.assert_array_equal(step_weights([1, 3], [2, 2], cut_off=True), [0, 1])


def test_metrics_are_pairs_over_scored_rollouts(config):
    r = annotate([good(), episode(task(), [calls(GOLD), ANSWER], end="sim_failed")], config)
    found = metrics(r)
    assert found["reward/tool"] == (1.0, 1.0) and found["reward/unscored"] == (1.0, 2.0)
    assert found["score/success@0.9"] == (1.0, 1.0)


def test_toolset_of_overrides_the_names_of_the_specs(config):
    r = annotate([good()], config, toolset_of=lambda task: {"other"})
    assert r.rewards["score/format"][0] == 0.0


def test_asking_and_refusing_are_told_apart(config):
    ask, abstain = (task(gold=[], facts=[], question="Send Olga an email.", kind=kind) for kind in ("ask", "abstain"))
    question, refusal = says("What subject do you mean?"), says("Sorry, I have no tool for that.")
    found = [scores(episode(t, [a]), config)["summary"] for t in (ask, abstain) for a in (question, refusal)]
    assert found == [1.0, 0.5, 0.5, 1.0]


@pytest.mark.parametrize("presence", ["exclude", "floor", "none"])
def test_right_abstentions_speak_against_needless_calls(config, presence):
    config.credit.presence = presence
    t = task(gold=[], facts=[], question="Paint my house.", kind="abstain")
    declines = [episode(t, [says("Sorry, I have no tool for that.")]) for _ in range(2)]
    rows = [*declines, episode(t, [calls(GOLD), ANSWER])]
    found = annotate(rows, config)
    np.testing.assert_array_equal(found.labels["abstained"], [True, True, False])
    credit = algorithm("slca", config.credit).credit(found)
    assert credit[2, 0] == pytest.approx(-1.1547, abs=1e-4) and (credit[:2] == 0).all()
    config.reward.abstain = "paper"
    assert not annotate(rows, config).labels["abstained"].any()


def test_omissions_and_unscored_rows_are_no_abstentions(config):
    t = task(gold=[], facts=[])
    rows = [episode(task(), OMITS), episode(t, [calls(errors=1), ANSWER]), episode(t, [ANSWER], end="dead")]
    assert not annotate(rows, config).labels["abstained"].any()
