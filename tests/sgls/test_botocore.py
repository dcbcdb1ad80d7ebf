"""Real API schemas at scale: every valid call is answered within its output shape, every invalid one is a typed error."""

import json
import random

import pytest

pytest.importorskip("botocore", reason="the extra `botocore` is not installed")

from slca.sgls.simulator import Simulator
from slca.tasks import aws
from slca.tasks.schema import ToolSet
from slca.tasks.values import argument
from slca.types import Context, ToolCall


def spoiled(tool, arguments, rng):
    """`arguments` made invalid: a required one dropped, or one of a wrong type, or the tool's name misspelt."""
    required = tool.parameters.get("required", [])
    if required and rng.random() < 0.5:
        dropped = rng.choice(required)
        return ToolCall(tool.name, {name: value for name, value in arguments.items() if name != dropped}), "invalid_arguments"
    if arguments and rng.random() < 0.8:
        return ToolCall(tool.name, {**arguments, rng.choice(list(arguments)): [[]]}), "invalid_arguments"
    return ToolCall(tool.name + "x", arguments), "unknown_tool"


def test_a_thousand_operations():
    toolset = ToolSet.load(aws.botocore(operations=50))
    assert len(toolset.tools) >= 1000 and not toolset.refused
    simulator, rng = Simulator(max_chars=1 << 20), random.Random(0)
    for tool in toolset.tools.values():
        arguments = argument(tool.parameters, rng)
        observation = simulator.simulate(ToolCall(tool.name, arguments), toolset, Context("g"))
        assert observation.status == "ok", (tool.name, observation)
        assert tool.check_response(json.loads(observation.text)) == []
        call, expected = spoiled(tool, arguments, rng)
        assert simulator.simulate(call, toolset, Context("g")).status == expected, (call, expected)
    assert simulator.metrics()["invalid_response_rate"] == 0
