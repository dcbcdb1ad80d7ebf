"""Several schemas as one: never wider than all of them, contradictions seen, references followed."""

import json

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slca.tasks.flatten import choices, flat
from slca.tasks.schema import load_tool
from slca.tasks.values import respond
from slca.tasks.vet import Refused


def fields(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


INT, BOOL = {"type": "integer"}, {"type": "boolean"}
REFS = {"a": fields(x=INT), "b": fields(y=BOOL)}

MERGED = {
    "two references": ({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, fields(x=INT, y=BOOL)),
    "reference and siblings": ({"$ref": "#/$defs/a", "minProperties": 2}, {**fields(x=INT), "minProperties": 2}),
    "nested": ({"allOf": [{"allOf": [{"minimum": 1}]}, {"allOf": [{"maximum": 5}, {"minimum": 3}]}]}, {"minimum": 3, "maximum": 5}),
    "exclusive bounds": ({"allOf": [{"exclusiveMinimum": 3}, {"exclusiveMinimum": 1}]}, {"exclusiveMinimum": 3}),
    "types": ({"allOf": [{"type": ["string", "null"]}, {"type": ["string", "integer"]}]}, {"type": "string"}),
    "an integer is a number": ({"allOf": [{"type": "number"}, {"type": ["integer", "null"]}]}, {"type": "integer"}),
    "enumerations": ({"allOf": [{"enum": [1, 2, "a"]}, {"enum": ["a", 2.0, True]}]}, {"enum": [2, "a"]}),
    "multiples": ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, {"multipleOf": 12}),
    "items": (
        {"allOf": [{"items": INT}, {"items": {"minimum": 7}, "uniqueItems": True}]},
        {"items": {"allOf": [INT, {"minimum": 7}]}, "uniqueItems": True},
    ),
    "one property twice": (
        {"allOf": [fields(x=INT), {"properties": {"x": {"minimum": 7}}}]},
        fields(x={"allOf": [INT, {"minimum": 7}]}),
    ),
    "a closed object": (
        {"allOf": [{**fields(x=INT), "additionalProperties": False}, {"properties": {"y": INT}}]},
        {"type": "object", "properties": {"x": INT, "y": False}, "required": ["x"], "additionalProperties": False},
    ),
    "branches": (
        {"allOf": [{"anyOf": [INT, BOOL]}, {"anyOf": [{"const": 1}]}]},
        {"anyOf": [{"allOf": [INT, {"const": 1}]}, {"allOf": [BOOL, {"const": 1}]}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_parts_become_one(name):
    schema, expected = MERGED[name]
    assert flat({"$defs": REFS}, schema) == expected


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "string"}, {"type": "integer"}],
        [{"enum": [1]}, {"enum": [True]}],
        [{"const": "a"}, {"enum": ["b"]}],
        [{"const": 1}, {"const": 2}],
        [INT, False],
        [{"type": "integer", "minimum": 3}, {"maximum": 2}],
        [{"type": "string", "minLength": 3}, {"maxLength": 2}],
    ],
)
def test_contradictions(parts):
    assert flat({}, {"allOf": parts}) is None


def test_what_has_no_parts_is_itself():
    schema = {"type": "integer"}
    assert flat(schema, schema) is schema and flat({}, True) == {} and flat({}, False) is None


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"$ref": "#/nowhere"}])
def test_references_to_nothing_or_to_themselves(schema):
    with pytest.raises(Refused):
        flat(schema, schema)


def test_choices_obey_the_type_beside_them():
    assert choices({"type": "integer", "enum": [1, "a", True, 2.0]}) == [1, 2.0]
    assert choices({"type": ["string", "null"], "enum": ["a", None, 3]}) == ["a", None]
    assert choices({"const": None}) == [None] and choices({"const": 1, "type": "boolean"}) == []
    assert choices({"type": "string"}) is None


LEAVES = [
    {"type": "integer"}, {"type": ["integer", "string"]}, {"type": "string", "minLength": 1}, {"enum": [1, "a", None, 4]}, {"minimum": 2},
    {"type": "number", "maximum": 8}, {"multipleOf": 2}, {"const": 4}, {"maxLength": 3}, True, {"$ref": "#/$defs/leaf"},
]  # fmt: skip
parts = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(lambda few: {"allOf": few}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda few: {"anyOf": few}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(
            lambda named, extra: {"type": "object", "properties": named, "required": sorted(named)[:1], "additionalProperties": extra},
            st.dictionaries(st.sampled_from("xyz"), inner, max_size=2), st.sampled_from([True, False, {"type": "integer"}]),
        ),
        st.builds(lambda item: {"type": "array", "items": item, "minItems": 1, "maxItems": 2}, inner),
    ),
    max_leaves=10,
)  # fmt: skip
values = st.recursive(
    st.sampled_from([0, 1, 2, 4, 9, 4.0, 2.5, "a", "", "abcd", None, True]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(parts, parts, st.lists(values, min_size=1, max_size=8))
def test_one_schema_says_what_both_say(left, right, bodies):
    root = {"allOf": [left, right], "$defs": {"leaf": {"type": "integer", "maximum": 9}}}
    found = flat(root, {"allOf": root["allOf"]})
    for body in bodies:
        expected = jsonschema_rs.is_valid(root, body)
        if found is None:
            assert not expected
        else:
            assert jsonschema_rs.is_valid({**found, "$defs": root["$defs"]}, body) is expected, (found, body)


@settings(max_examples=80, deadline=None)
@given(parts, parts)
def test_answers_obey_both(left, right):
    tool = load_tool({"name": "f", "response": {"allOf": [left, right], "$defs": {"leaf": {"type": "integer", "maximum": 9}}}})
    try:
        answer = respond(tool, {}, 0)
    except ValueError:
        assume(False)
    assert tool.check_response(json.loads(json.dumps(answer))) == []
