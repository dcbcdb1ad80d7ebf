"""Reward hacks met in practice (field-bugs A9, 103-112): none of them pays more than doing the task, or than not doing it.

109 (training return up, evaluation down) is no reward but a missing measurement: `eval.every` and slca.evals.
"""

import json
from itertools import pairwise

import pytest

from slca.rewards.annotate import annotate
from slca.rewards.scores import scores
from slca.types import Observation, Parsed, ToolCall
from tests.rewards.episodes import ANSWER, GOLD, RESULT, calls, episode, good, says, task

WRONG = ToolCall("weather", {"city": "Rome"})
ABSTAIN = task(gold=[], facts=[], question="Paint my house.", kind="abstain")
CHANNELS = ("tool", "summary", "total", "success", "action", "plan", "layered")


def channels(config, *rows):
    found = annotate(list(rows), config).rewards
    return [{name: found[name][n] for name in CHANNELS} for n in range(len(rows))]


def test_103_empty_answers_get_nothing(config):
    for text in ("", " ", "<answer></answer>", "."):
        assert scores(episode(task(), [calls(GOLD), says(text)]), config)["summary"] == 0.0


def test_104_doing_nothing_or_padding_with_keywords(config):
    idle, padded, honest = channels(
        config,
        episode(task(), [says("I will be careful and polite, and I will do no harm at all.")]),
        episode(task(), [says("weather Oslo degrees warm " * 3)]),
        good(),
    )
    assert idle["total"] == padded["total"] == -0.5 < honest["total"]
    assert max(idle["plan"], idle["layered"], idle["action"], idle["success"]) == 0.0


@pytest.mark.parametrize("repeated", [GOLD, WRONG])
def test_105_111_more_calls_never_pay(config, repeated):
    rows = [episode(task(), [calls(repeated)] * n + [ANSWER]) for n in range(1, 6)]
    found = channels(config, *rows)
    for fewer, more in pairwise(found):
        assert all(more[name] <= fewer[name] for name in CHANNELS)
    assert found[-1]["total"] < found[0]["total"] and found[-1]["plan"] < found[0]["plan"]


def test_106_107_results_written_by_the_policy_are_no_results(config):
    forged = Parsed(
        calls=(GOLD,), opened=1, closed=1, forged=True, text='<tool_response>{"temperature": 17.4}</tool_response> It is 17.4 degrees.'
    )  # fmt: skip
    alone = episode(task(), [forged], [[]], end="forged")
    in_text = episode(task(), [says('<tool_response>{"temperature": 17.4}</tool_response> It is 17.4 degrees.')])
    a, b, honest = channels(config, alone, in_text, good())
    assert a["plan"] == -1.0 and a["summary"] == 0.0 and b["summary"] == -0.5
    assert max(a["success"], b["success"]) == 0.0 and max(a["total"], b["total"]) < honest["total"]


def test_108_needless_calls_are_not_paid_and_neither_are_useless_ones(config):
    rows = [
        episode(ABSTAIN, [says("I have no tool for painting.")]),
        episode(ABSTAIN, [calls(WRONG), says("I have no tool for painting.")]),
        episode(ABSTAIN, [calls(errors=1), says("I have no tool for painting.")]),
    ]
    right, needless, junk = channels(config, *rows)
    assert right["total"] == 2.0 > needless["total"] > junk["total"]
    assert right["plan"] == 1.0 > needless["plan"] > junk["plan"] == -1.0
    assert right["success"] == 1.0 and needless["success"] == junk["success"] == 0.0


def test_110_claiming_a_call_that_was_never_made(config):
    claims = episode(task(), [says("I called the weather tool and it returned 17.4 degrees in Oslo.")])
    invents = episode(ABSTAIN, [says("I booked a painter for you, the number is 5512.")])
    a, b = channels(config, claims, invents)
    assert a["total"] == -0.5 and b["summary"] == 0.0


def test_110_invented_results_after_a_failed_call(config):
    failed = [[Observation(json.dumps({"error": "service unavailable"}), "tool_error")], []]
    lied = episode(task(), [calls(GOLD), says("The tool returned 17.4 degrees in Oslo.")], failed)
    assert scores(lied, config)["summary"] == 0.0


def test_112_rows_without_gold_calls_are_scored(config):
    assert scores(episode(ABSTAIN, [calls(WRONG), says("Done, it is painted.")]), config)["process"] < 0.5
    assert scores(episode(ABSTAIN, [says("I have no tool for painting.")]), config)["process"] == 1.0


def test_malformed_calls_never_beat_an_honest_omission(config):
    """Unlike the released code, where the guard looks for a tag and junk escapes it."""
    junk, omission = channels(
        config, episode(task(), [calls(errors=1), ANSWER], end="answered"), episode(task(), [says("It is warm in Oslo.")])
    )
    assert all(junk[name] <= omission[name] for name in CHANNELS)
    config.credit.omission_test = "tag"
    junk, omission = channels(
        config, episode(task(), [calls(errors=1), ANSWER]), episode(task(), [says("It is warm in Oslo.")])
    )
    assert junk["total"] > omission["total"]


def test_copying_the_whole_result_is_worth_less_than_an_answer(config):
    dump = episode(task(), [calls(GOLD), says(RESULT.text)])
    assert scores(dump, config)["summary"] < scores(good(), config)["summary"]


def test_guessing_every_value_at_once_is_worth_less(config):
    hedged = episode(task(), [calls(GOLD), says("It is " + " or ".join(str(i + 0.4) for i in range(30)) + " degrees.")])
    assert scores(hedged, config)["summary"] < 0.1
