"""Schemas that want to hang, crash or fool the simulator: every call has a typed outcome, every grammar keeps its promise."""

import json

import pytest

from slca.sgls import grammar
from slca.sgls.simulator import Simulator
from slca.tasks.schema import ToolSet
from slca.types import Context, ToolCall

AGAIN = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}


def closed(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = closed(a=schema)
    return schema


ANSWERED = {
    "recursion, optional": {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}},
    "recursion that branches": closed(**{f"p{i}": AGAIN for i in range(10)}),
    "recursion in a ring": {
        "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 2}, "b": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}},
        "$ref": "#/$defs/a",
    },
    "huge enumeration": {"enum": [f"value {i}" for i in range(12_000)]},
    "long literals": {"enum": ["x" * 20_000 + str(i) for i in range(10)]},
    "big constant": {"const": [[["x" * 1000] * 20] * 5]},
    "many branches": {"oneOf": [{"const": i} for i in range(3000)]},
    "branches multiplied": {"allOf": [{"anyOf": [{"type": "string"}, {"type": "integer"}]}] * 12},
    "integers beyond floats": {"type": "integer", "minimum": 10**400},
    "an integer of 64 bits, the lowest": {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},
    "integers below those of 64 bits": {"type": "integer", "maximum": -1e19},
    "a bound that is rounded to the lowest integer": {"type": ["integer", "null"], "maximum": 513 - 2**63},
    "a constant below integers of 64 bits": {"const": [-(2**63)]},
    "a choice below integers of 64 bits": {"enum": [-(2**70), 1]},
    "a step beyond floats": {"type": "number", "multipleOf": 1e-300, "minimum": 0},
    "counts as floats": {"type": "array", "minItems": 2.0, "items": {"type": "string", "minLength": 3.0, "maxLength": 4.0}},
    "names that are no words": {"type": "object", "required": ["__proto__", "", "a\nb", "\0", '"', "ключ"]},
    "names by pattern": {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "integer"}}, "additionalProperties": False, "minProperties": 2},
    "names by list": {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 2},
    "a negation": {"not": {"type": "string"}},
    "contains twice": {"type": "array", "contains": {"const": 1}, "minContains": 2, "maxItems": 2},
    "deep": deep(50),
    "junk where it does not matter": {"type": "string", "default": {"$ref": "http://x"}, "examples": [1] * 1000},
    "conditions": {"if": {"type": "string"}, "then": {"minLength": 3}, "else": {"type": "integer"}},
}  # fmt: skip
REFUSED = {
    "recursion without end": closed(a={"$ref": "#"}),
    "contradiction": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "contradicting lists": {"allOf": [{"enum": ["a"]}, {"enum": ["b"]}]},
    "a required field that may not be": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "pattern without a match": {"type": "string", "pattern": "^a$", "minLength": 3},
    "repeats in repeats": {"type": "string", "pattern": "^(a+)+$", "minLength": 60_000},
    "a billion items": {"type": "array", "minItems": 10**9},
    "a billion keys": {"type": "object", "minProperties": 10**9},
    "long text": {"type": "string", "minLength": 10**9},
    "nothing at all": {"not": {}},
    "no name allowed": {"type": "object", "propertyNames": False, "minProperties": 1},
    "a list without its type": {"type": "boolean", "enum": [1, 0]},
}


def toolset(response):
    found = ToolSet.load([{"name": "f", "parameters": {"type": "object"}, "response": response}])
    assert not found.refused
    return found


@pytest.mark.parametrize("name", ANSWERED)
def test_answered_within_the_schema(name):
    tools = toolset(ANSWERED[name])
    answer = Simulator(max_chars=1 << 20).simulate(ToolCall("f", {}), tools, Context("g"))
    assert answer.status == "ok", answer
    assert tools.tools["f"].check_response(json.loads(answer.text)) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_obeys_is_our_failure(name):
    answer = Simulator().simulate(ToolCall("f", {}), toolset(REFUSED[name]), Context("g"))
    assert (answer.status, answer.provenance["error"]) == ("sim_failed", "unsatisfiable_schema")


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("llguidance", reason="the extra `grammar` (llguidance) is not installed")
    from slca.chat.tokenizer import load
    from tests.sgls.sampling import random_model

    return random_model(load("tiny"))


@pytest.mark.parametrize("name", [*ANSWERED, *REFUSED])
def test_a_grammar_keeps_its_promise_or_is_not_made(name, model):
    tool = toolset({**ANSWERED, **REFUSED}[name]).tools["f"]
    try:
        text = grammar.compile(tool.response, 300)
    except grammar.NoGrammar:
        return
    for reply in model([[]] * 3, [text] * 3, 300, 1.0):
        assert reply.tokens <= 300
        body = json.loads(reply.text)
        if not {"not", "if", "contains", "propertyNames"} & tool.response.keys():  # left to the check of the finished body
            assert tool.check_response(body) == [], reply.text
