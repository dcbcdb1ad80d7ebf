"""Results that validate, repeat, echo and stay consistent."""

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca.tasks.schema import ToolSet, load_tool
from slca.tasks.values import Unsatisfiable, argument, respond, response_seed
from slca.types import ToolCall


def tool(response, parameters=None):
    return load_tool({"name": "f", "parameters": parameters or {"type": "object"}, "response": response})


FLIGHTS = {
    "type": "object",
    "properties": {
        "flights": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "flight_id": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"},
                    "origin": {"type": "string"},
                    "price": {"type": "number", "minimum": 10, "maximum": 900},
                    "seats": {"type": "integer", "minimum": 0, "maximum": 9},
                    "cabin": {"enum": ["eco", "biz"]},
                },
                "required": ["flight_id", "price"],
                "additionalProperties": False,
            },
        },
        "date": {"type": "string", "format": "date"},
    },
    "required": ["flights"],
}


def test_the_same_call_gets_the_same_answer():
    flights = tool(FLIGHTS)
    one = respond(flights, {"origin": "Oslo", "days": 3}, 7)
    assert one == respond(flights, {"days": 3.0, "origin": "Oslo"}, 7)  # key order and 3.0 do not matter
    assert one == respond(flights.spec, {"origin": "Oslo", "days": 3}, 7)
    assert one == respond(flights, {"origin": "Oslo", "days": 3}, 7, [(ToolCall("g", {}), {"origin": "Rome"})])
    assert one != respond(flights, {"origin": "Oslo", "days": 4}, 7)
    assert one != respond(flights, {"origin": "Oslo", "days": 3}, 8)


def test_arguments_are_echoed_where_names_match():
    answer = respond(tool(FLIGHTS), {"origin": "Oslo", "date": "2030-01-02", "cabin": "first"}, 0)
    assert answer["date"] == "2030-01-02"
    assert 1 <= len(answer["flights"]) <= 3
    assert all(flight["origin"] == "Oslo" for flight in answer["flights"])
    assert all(flight["cabin"] in ("eco", "biz") for flight in answer["flights"])  # "first" would not validate


def test_an_echo_that_breaks_the_schema_is_dropped():
    short = tool({"type": "object", "properties": {"note": {"type": "string", "maxLength": 3}}, "required": ["note"]})
    assert len(respond(short, {"note": "far too long"}, 0)["note"]) <= 3


def test_identifiers_of_earlier_results_bring_their_fields():
    person = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    seen = [(ToolCall("find", {"city": "Oslo"}), {"hits": [{"id": "U17", "name": "Vera"}, {"id": "U18", "name": "Theo"}]})]
    assert respond(tool(person), {"id": "U18"}, 0, seen)["name"] == "Theo"
    said_by_caller = [(ToolCall("find", {"id": "U18"}), {"id": "U18", "name": "Theo"})]
    assert respond(tool(person), {"id": "U18"}, 0, said_by_caller) == respond(tool(person), {"id": "U18"}, 0)


def test_no_response_schema():
    bare = load_tool({"name": "f"})
    assert respond(bare, {"a": 1, "b": [2], "c": "x"}, 0) == {"status": "ok", "a": 1, "c": "x"}


@pytest.mark.parametrize(
    "schema",
    [{"type": "integer", "minimum": 3, "maximum": 2}, {"not": {}}, {"type": "string", "pattern": "^a$", "minLength": 5}],
)
def test_impossible_schemas(schema):
    with pytest.raises(Unsatisfiable, match="f: no value"):
        respond(tool(schema), {}, 0)


AGAIN = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}


def filled(part, count=10):
    return {"type": "object", "properties": {f"p{i}": part for i in range(count)}, "required": [f"p{i}" for i in range(count)]}


@pytest.mark.parametrize(
    "schema",
    [
        filled({"$ref": "#"}),
        {"type": "array", "items": {"$ref": "#"}, "minItems": 2},
        {"type": "array", "minItems": 10**9},
        {"type": "array", "items": {"type": "array", "minItems": 300}, "minItems": 300},
        {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "minItems": 4000},
        {"type": "object", "minProperties": 10**9},
        {"type": "string", "minLength": 10**9},
        {"type": "string", "minLength": 10**9, "pattern": "a*"},
        {"allOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "integer", "enum": ["a"]},
        {"type": "number", "minimum": 0.5, "maximum": 10**400},  # no float reaches that bound
        {"type": "number", "maximum": -(10**400)},
        {"type": "integer", "minimum": 10**400, "multipleOf": 0.1},
    ],
)
def test_schemas_that_ask_for_too_much_or_contradict_themselves_are_given_up_soon(schema):
    with pytest.raises(Unsatisfiable):
        respond(tool(schema), {}, 0)


def test_a_schema_that_branches_without_end_gets_a_small_answer():
    bush = tool(filled(AGAIN))
    answer = respond(bush, {}, 0)
    assert bush.check_response(answer) == [] and len(json.dumps(answer)) < 100_000


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 1000, "maximum": 1003},
        {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
        {"type": "integer", "multipleOf": 25, "minimum": 10, "maximum": 60},
        {"type": "number", "minimum": 0.25, "maximum": 0.26},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "integer", "maximum": -500},
        {"type": "integer", "minimum": 1e9},
        {"type": "string", "minLength": 40, "maxLength": 41},
        {"type": "string", "maxLength": 0},
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 3, "uniqueItems": True},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
        {"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}, "minItems": 1},
        {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 3},
        {"type": "object", "propertyNames": {"pattern": "^k[0-9]{3}$"}, "additionalProperties": {"type": "integer"}, "minProperties": 2},
        {"type": "object", "required": ["z"]},
        {"type": ["null", "integer"]},
        {"type": "null"},
        {"const": {"a": [1]}},
        {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}], "type": "object"},
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]},
        {"$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"]}}, "$ref": "#/$defs/n"},
        {"properties": {"a": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "array", "items": {"format": "uuid"}}}}}}},
        {},
    ],
)  # fmt: skip
def test_every_draw_validates(schema):
    described = tool(schema)
    for seed in range(40):
        assert described.check_response(respond(described, {"a": 1}, seed)) == []


schemas = st.recursive(
    st.sampled_from(
        [{"type": "string"}, {"type": "integer", "minimum": 5}, {"type": "boolean"}, {"enum": [1, "a", None]}, {"type": "number", "maximum": -1},
         {"type": "string", "format": "date"}, {"type": ["string", "null"], "maxLength": 4}]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items, low: {"type": "array", "items": items, "minItems": low}, inner, st.integers(0, 4)),
        st.builds(
            lambda fields, closed: {"type": "object", "properties": fields, "required": sorted(fields)[:2], "additionalProperties": not closed},
            st.dictionaries(st.sampled_from(["name", "city", "id", "items"]), inner, max_size=3), st.booleans(),
        ),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    schemas,
    st.dictionaries(st.sampled_from(["name", "city", "items"]), st.integers() | st.text(max_size=6), max_size=2),
    st.integers(0, 9),
)
def test_random_schemas_get_valid_answers_and_arguments(schema, arguments, seed):
    described = tool(schema, {"type": "object", "properties": {"x": schema}})
    assert described.check_response(respond(described, arguments, seed)) == []
    assert described.check({"x": argument(schema, Random(seed), "x")}) == []


def test_arguments_of_the_unseen_half():
    rng = Random(0)
    train = {argument({"type": "string"}, rng, "city") for _ in range(500)}
    unseen = {argument({"type": "string"}, rng, "city", unseen=True) for _ in range(500)}
    assert train and unseen and not train & unseen
    assert len({argument({"type": "string"}, rng, "city", made_up=1.0) for _ in range(100)}) > 90


def test_arguments_hold_only_what_is_required():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
    assert all(set(argument(schema, Random(i))) == {"a"} for i in range(30))


def test_seed_of_a_world():
    assert response_seed("train-0-1") == response_seed("train-0-1") != response_seed("train-0-2")


def test_answers_are_json():
    flights = tool(FLIGHTS)
    assert ToolSet.load([flights.spec]).refused == []
    for seed in range(20):
        answer = respond(flights, {"origin": "Tromsø"}, seed)
        assert json.loads(json.dumps(answer, ensure_ascii=False)) == answer
