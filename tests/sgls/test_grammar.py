"""Constrained decoding: even uniform weights write valid JSON within the token budget."""

import json

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="the extra `grammar` (llguidance) is not installed")

from slca.chat.tokenizer import load
from slca.sgls import grammar
from slca.tasks.schema import ToolSet
from tests.sgls.sampling import random_model
from tests.sgls.tools import SPECS

MAX_TOKENS = 160
FORMS: dict = {
    "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 3},
    "dates": {"type": "object", "properties": {"on": {"type": "string", "format": "date"}}, "required": ["on"]},
    "union": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": ["string", "null"], "maxLength": 3}]},
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "free": {},
    "tree": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"]},
    "letters beyond the vocabulary": {"type": "object", "properties": {"größe \u2028 \U0001f600": {"enum": ["北京", "é\\\""]}}, "required": ["größe \u2028 \U0001f600"]},
    "numbers written in full": {"enum": [1e-7, 1e22, [2.5e-9]]},
    "unique": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
}  # fmt: skip


@pytest.fixture(scope="module", params=["tiny", "smollm2", "qwen3"])  # sentencepiece with byte tokens, byte-level BPE
def model(request):
    from tests.chat.families import template

    return random_model(template(request.param).tokenizer)


def test_random_weights_always_finish_in_valid_json(model):
    forms = [{"name": name, "parameters": {"type": "object"}, "response": form} for name, form in FORMS.items()]
    tools = [tool for tool in ToolSet.load([*forms, *SPECS]).tools.values() if tool.response is not None]
    assert len(tools) >= len(FORMS) + 5
    rows = [tool for tool in tools for _ in range(6)]
    replies = model([[]] * len(rows), [grammar.compile(tool.response, MAX_TOKENS) for tool in rows], MAX_TOKENS, 1.0)
    for tool, reply in zip(rows, replies):
        assert tool.check_response(json.loads(reply.text)) == [], (tool.name, reply.text)
        assert reply.tokens <= MAX_TOKENS
    assert len({reply.text for reply in replies}) > len(rows) // 2


def test_budgets_that_cannot_hold():
    wide = {"type": "object", "properties": {f"name{i}": {"type": "integer"} for i in range(20)}}
    wide["required"] = list(wide["properties"])
    with pytest.raises(grammar.NoGrammar, match="100 tokens"):
        grammar.compile(wide, 100)
    grammar.compile(wide, 2000)
    with pytest.raises(grammar.NoGrammar, match="300 tokens"):
        grammar.compile({"const": 1e300}, 300)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": "^a$", "minLength": 5},
        {"type": "string", "format": "date", "maxLength": 5},
        {"const": "\ud800"},
        {"allOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},  # these numbers end the process inside llguidance
        {"type": "integer", "maximum": -1e19},
        {"type": "array", "items": {"const": 512 - 2**63}, "minItems": 1},
        {"type": "number", "minimum": 0.5, "maximum": 10**400},
    ],
)
def test_schemas_without_a_grammar(schema):
    for _ in range(2):  # the second answer comes from memory
        with pytest.raises(grammar.NoGrammar):
            grammar.compile(schema, 100)


def test_the_lowest_number_that_has_a_grammar():
    lowest = 1024 - 2**63  # the next float above -(2**63)
    assert str(lowest) in grammar.compile({"const": lowest}, 100)
    assert str(lowest) in grammar.compile({"type": "integer", "minimum": lowest, "maximum": lowest}, 100)


def test_a_constraint_allows_what_the_grammar_says():
    tokenizer = load("tiny")
    constraint = grammar.Constraint(grammar.vocabulary(tokenizer), grammar.compile({"const": True}, 50))
    allowed = grammar.unpacked(constraint.mask(), tokenizer.size)
    assert {tokenizer.decode([i]) for i in np.flatnonzero(allowed)} <= {"t", "tr", "tru", "true"}
    for token in tokenizer.encode("true"):
        assert not constraint.stopped()
        constraint.advance(token)
    assert constraint.stopped() and set(np.flatnonzero(grammar.unpacked(constraint.mask(), tokenizer.size))) == {
        tokenizer.stop_ids[0]
    }


def test_a_token_that_the_grammar_forbids_leaves_nothing():
    tokenizer = load("tiny")
    constraint = grammar.Constraint(grammar.vocabulary(tokenizer), grammar.compile({"const": True}, 50))
    constraint.advance(tokenizer.encode("false")[0])
    assert not constraint.mask().any() and not constraint.stopped()


def test_control_ids_are_never_allowed():
    tokenizer = load("tiny")
    constraint = grammar.Constraint(grammar.vocabulary(tokenizer), grammar.compile({"type": "string"}, 900))
    constraint.advance(tokenizer.encode('"')[-1])
    allowed = grammar.unpacked(constraint.mask(), tokenizer.size)
    assert allowed.sum() > 500 and not allowed[list(tokenizer.control.values())].any()


def test_a_grammar_that_does_not_compile():
    with pytest.raises(ValueError, match="nothing_like_it"):
        grammar.Constraint(grammar.vocabulary(load("tiny")), "start: nothing_like_it")
