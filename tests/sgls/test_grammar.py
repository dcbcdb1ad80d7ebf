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
FORMS = {
    "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 3},
    "dates": {"type": "object", "properties": {"on": {"type": "string", "format": "date"}}, "required": ["on"]},
    "union": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": ["string", "null"], "maxLength": 3}]},
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "free": {},
    "tree": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"]},
    "unique": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
}


@pytest.fixture(scope="module")
def model():
    return random_model(load("tiny"))


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


def test_keywords_without_a_grammar():
    with pytest.raises(grammar.NoGrammar):
        grammar.compile({"type": "string", "pattern": "(?=a)b"}, 100)


def test_rows_without_a_grammar_are_free():
    tokenizer = load("tiny")
    view = grammar.vocabulary(tokenizer)
    constraint = grammar.Constraint(view, [None, grammar.compile({"const": True}, 50)])
    allowed = grammar.unpacked(constraint.mask(), tokenizer.size)
    assert allowed.shape == (2, tokenizer.size) and allowed[0].all()
    assert {tokenizer.decode([i]) for i in np.flatnonzero(allowed[1])} <= {"t", "tr", "tru", "true"}
    for token in tokenizer.encode("true"):
        assert not constraint.stopped()[1]
        constraint.advance(np.array([5, token]))
    final = grammar.unpacked(constraint.mask(), tokenizer.size)[1]
    assert set(np.flatnonzero(final)) == {tokenizer.stop_ids[0]}


def test_control_ids_are_never_allowed():
    tokenizer = load("tiny")
    constraint = grammar.Constraint(grammar.vocabulary(tokenizer), [grammar.compile({"type": "string"}, 900)])
    constraint.advance(np.array(tokenizer.encode('"')[-1:]))
    allowed = grammar.unpacked(constraint.mask(), tokenizer.size)[0]
    assert not allowed[list(tokenizer.control.values())].any()


def test_a_grammar_that_does_not_compile():
    with pytest.raises(ValueError, match="row 1"):
        grammar.Constraint(grammar.vocabulary(load("tiny")), [None, "start: nothing_like_it"])
