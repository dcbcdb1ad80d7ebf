"""Narrowed schemas: subsets of the original, with a true bound on the bytes of a body."""

import json
import random

import jsonschema_rs
import pytest

from slca.sgls.finite import Sizes, narrowed
from slca.tasks import aws
from slca.tasks.schema import ToolSet
from slca.tasks.values import argument

SMALL = Sizes(characters=4, items=2, levels=4, optional=True)


def closed(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@pytest.mark.parametrize(
    "schema, longest_body",
    [
        ({"type": "boolean"}, "false"),
        ({"type": "null"}, "null"),
        ({"enum": ["a", "långt", 3]}, '"långt"'),
        ({"const": {"a": [1]}}, '{"a": [1]}'),
        ({"type": "integer", "minimum": -5, "maximum": 120}, "120"),
        ({"type": "integer"}, "-1000000"),
        ({"type": "number", "minimum": 0, "maximum": 10}, "10.00"),
        ({"type": "string"}, '"' + "\\u0001" * 4 + '"'),
        ({"type": "string", "format": "date"}, '"2024-12-31"'),
        (closed(a={"type": "boolean"}, b={"type": "null"}), '{"a": false, "b": null}'),
        ({"type": "array", "items": {"type": "boolean"}}, "[false, false]"),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 3}, "[false, false, false]"),
        ({"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}}, "[null, false]"),
        ({"anyOf": [{"type": "null"}, {"enum": ["abc"]}]}, '"abc"'),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"enum": ["abc"]}}}, '"abc"'),
        ({"allOf": [{"type": "array"}, {"items": {"type": "null"}, "maxItems": 1}]}, "[null]"),
    ],
)
def test_the_longest_body_is_counted(schema, longest_body):
    found = narrowed(schema, SMALL)
    assert jsonschema_rs.is_valid(found.schema, json.loads(longest_body))
    assert jsonschema_rs.is_valid(schema, json.loads(longest_body))
    assert len(longest_body.encode()) <= found.longest <= len(longest_body.encode()) + 8


@pytest.mark.parametrize(
    "schema, body",
    [
        (closed(a={"type": "string"}), {"a": "12345"}),
        (closed(a={"type": "string"}), {}),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, {"a": None, "b": 1}),
        ({"type": "array", "items": {"type": "null"}}, [None] * 3),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1, 1]),
        ({"type": "integer"}, 10**7),
    ],
)
def test_what_is_narrowed_away(schema, body):
    assert not jsonschema_rs.is_valid(narrowed(schema, SMALL).schema, body)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 2.2, "maximum": 2.8},
        {"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3},
        {"type": "number", "minimum": 3, "maximum": 2},
        {"type": "integer", "multipleOf": 50, "minimum": 51, "maximum": 99},
        {"type": "integer", "enum": ["a"]},
        {"allOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "object", "minProperties": 10**9},
        {"type": "object", "required": ["a"], "additionalProperties": False},
    ],
)
def test_schemas_that_nothing_obeys_have_no_form(schema):
    assert narrowed(schema, SMALL) is None


def test_all_parts_bind():
    """Two references side by side, one property twice, a closed object: each part has its say."""
    shared = {
        "a": closed(x={"type": "integer"}),
        "b": {"properties": {"x": {"minimum": 7, "maximum": 9}, "y": {"type": "null"}}},
    }
    found = narrowed({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": shared}, SMALL)
    assert jsonschema_rs.is_valid(found.schema, {"x": 8})
    for body in ({"x": 6}, {"x": 8, "y": None}, {}):
        assert not jsonschema_rs.is_valid(found.schema, body)


def test_numbers_without_bounds_have_both_signs():
    found = narrowed({"type": "number"}, SMALL).schema
    assert jsonschema_rs.is_valid(found, 12.25) and jsonschema_rs.is_valid(found, -12.25)
    small = narrowed({"type": "number", "exclusiveMinimum": 1e-9, "maximum": 3e-9}, SMALL).schema
    assert jsonschema_rs.is_valid(small, 2e-9)


def test_a_schema_that_branches_without_end_is_given_up_soon():
    """Ten required references back to itself: a million nodes at six levels."""
    again = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    bush = {"type": "object", "properties": {f"p{i}": again for i in range(10)}, "required": [f"p{i}" for i in range(10)]}
    assert narrowed(bush, Sizes(64, 4, 6, True)) is None


def test_recursion_ends():
    tree = {"type": "object", "properties": {"v": {"type": "null"}, "next": {"$ref": "#"}}, "required": ["v"]}
    found = narrowed(tree, SMALL)
    assert jsonschema_rs.is_valid(found.schema, {"v": None, "next": {"v": None}})
    assert found.longest < 200 and "$ref" not in json.dumps(found.schema)


def test_endless_requirements_are_impossible():
    assert narrowed({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}, SMALL) is None
    assert narrowed({"$ref": "#"}, SMALL) is None
    assert narrowed({"$ref": "#/nowhere"}, SMALL) is None


def test_optional_fields_go_first():
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]}
    assert set(narrowed(schema, SMALL).schema["properties"]) == {"a", "b"}
    assert set(narrowed(schema, SMALL._replace(optional=False)).schema["properties"]) == {"b"}


def test_a_map_with_a_least_size_gets_keys():
    schema = {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 2}
    assert jsonschema_rs.is_valid(schema, {name: True for name in narrowed(schema, SMALL).schema["required"]})


def test_bodies_of_narrowed_real_schemas_obey_the_original_and_the_bound():
    pytest.importorskip("botocore", reason="the extra `botocore` is not installed")
    rng, checked = random.Random(0), 0
    for tool in ToolSet.load(aws.botocore(operations=6)).tools.values():
        for sizes in (SMALL, Sizes(32, 3, 5, True), Sizes(2, 1, 8, False)):
            found = narrowed(tool.response, sizes) if tool.response else None
            if found is None:
                continue
            for _ in range(3):
                body = argument(found.schema, rng)
                assert jsonschema_rs.is_valid(found.schema, body), (tool.name, found.schema, body)
                assert tool.check_response(body) == [], (tool.name, body)
                assert len(json.dumps(body, ensure_ascii=False).encode()) <= found.longest
                checked += 1
    assert checked > 800
