"""Metrics of scripted policies whose scores are known by hand."""

import math
import random

import pytest

from slca.evals.indomain import evaluate, summarize
from slca.types import Observation, Task, ToolCall
from tests.rollout.fakes import ScriptedSampler, Template, Tokenizer

encode, STOP = Tokenizer().encode, 1
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Tools:
    def simulate(self, call, toolset, context):
        return Observation('{"city": "Oslo", "sky": "rain"}', "sim_failed" if context.group == "broken" else "ok")


def task(name):
    question = {"role": "user", "content": f"{name}: how is the weather in Oslo?"}
    return Task(name, [question], [WEATHER], [[ToolCall("weather", {"city": "Oslo"})]], facts=[["rain"]])


def policy(row, key):
    """Right for tasks named good, the wrong city for bad, no call for lazy; coin: right or lazy by the key."""
    text = Tokenizer().decode(row)
    kind = text.split("user\n")[1].split(":")[0].rstrip("0123456789")
    if kind == "coin":
        kind = random.Random(key).choice(["good", "lazy"]) if "tool\n" not in text else "good"
    if kind == "lazy" or "tool\n" in text:
        return [*encode("The weather in Oslo is rain today."), STOP]
    city = {"bad": "Rome"}.get(kind, "Oslo")
    return [*encode(f'<tool_call>{{"name": "weather", "arguments": {{"city": "{city}"}}}}</tool_call>'), STOP]


def run(config, names, **options):
    config.rollout.update({"max_turn_tokens": 200, "max_response_tokens": 1000, "max_prompt_tokens": 500})
    options = {"temperature": 0.0, "seed": 5} | options
    return evaluate(None, [task(name) for name in names], ScriptedSampler(policy), Template(), Tools(), config, **options)


def test_a_right_policy_scores_one(config):
    table = run(config, ["good1", "good2"])
    for name in ("process", "name", "argmatch", "success@0.9", "solved", "answered", "end/answered"):
        assert table[name] == (1.0, 2), name
    assert table["tool_turns"] == (1.0, 2) and table["unscored"] == (0.0, 2)
    assert table["summary"][0] > 0.5
    assert table["cost/calls_per_solved"] == (1.0, 2) and table["cost/tokens_per_solved"] == (0.0, 2)


def test_a_wrong_argument_costs_the_value_term(config):
    table = run(config, ["bad", "good"])
    # HierR weights: format .10, name .25, key .15, value .20, parallel .30; the wrong city loses the value term alone.
    assert table["process"] == (pytest.approx((0.8 + 1.0) / 2), 2)
    assert table["success@0.9"] == (0.5, 2) and table["name"] == (1.0, 2)
    assert table["argmatch"] == (pytest.approx((0.5 + 1.0) / 2), 2)
    assert table["cost/calls_per_solved"] == (
        2.0,
        1,
    )  # the call of the rollout that failed was made for the other one's success


def test_no_call_where_one_is_due(config):
    table = run(config, ["lazy"])
    assert table["success@0.9"] == (0.0, 1) and table["omitted"] == (1.0, 1) and table["tool_turns"] == (0.0, 1)


def test_unscored_rows_lower_n_not_the_mean(config):
    table = run(config, ["good", "broken"])
    assert table["process"] == (1.0, 1) and table["unscored"] == (0.5, 2) and table["end/sim_failed"] == (0.5, 2)
    table = run(config, ["broken"])
    assert "process" not in table and table["unscored"] == (1.0, 1)
    assert math.isnan(summarize([], config)["unscored"][0])


def test_trials_are_drawn_by_seed(config):
    table = run(config, [f"coin{i}" for i in range(8)], temperature=1.0, trials=4)
    mean, n = table["success@0.9"]
    assert n == 32 and 0.2 < mean < 0.8
    assert run(config, [f"coin{i}" for i in range(8)], temperature=1.0, trials=4) == table
    assert run(config, [f"coin{i}" for i in range(8)], temperature=1.0, trials=4, seed=6) != table
