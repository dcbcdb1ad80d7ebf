"""Loading, checking and canonical forms: F05-F08 of the field reports by number, then the rest."""

import json
import socket

import pytest
from hypothesis import strategies as st

from slca.tasks.schema import ToolSet, call_hash, canonical, load_tool, public_specs
from slca.types import ToolCall
from tests.chat.properties import property_tests


def spec(parameters, name="f", **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def faults(schema, value):
    """(path, kind) of the faults of value as the argument x."""
    tools = ToolSet.load([spec({"type": "object", "properties": {"x": schema}, "required": ["x"]})])
    assert not tools.refused
    return [(error.path, error.kind) for error in tools.check(ToolCall("f", {"x": value}))]


@pytest.mark.parametrize("value", [4, 4.0, 1e3])
def test_f05_integers(value):
    assert faults({"type": "integer"}, value) == []


@pytest.mark.parametrize("value", [4.5, True, "4", None])
def test_f05_not_integers(value):
    assert faults({"type": "integer"}, value) == [("x", "type")]


@pytest.mark.parametrize(("value", "fine"), [("7", True), (None, True), (7, False), (False, False)])
def test_f06_nullable_string(value, fine):
    assert (faults({"type": ["string", "null"]}, value) == []) == fine


@pytest.mark.parametrize(("value", "fine"), [(3, True), ([3, 4], True), ("3", False), ([3, "4"], False), (True, False)])
def test_f06_any_of(value, fine):
    schema = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}
    assert (faults(schema, value) == []) == fine


TRIP = {
    "type": "object",
    "properties": {
        "trip": {
            "type": "object",
            "properties": {
                "days": {"type": "integer", "minimum": 1},
                "cabin": {"type": "string", "enum": ["eco", "biz"], "default": "eco"},
            },
            "required": ["days"],
            "additionalProperties": False,
        }
    },
    "required": ["trip"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"trip": {"days": 2}}, []),
        ({"trip": {"days": 0}}, [("trip.days", "minimum")]),
        ({"trip": {"days": 2, "cabin": "Eco"}}, [("trip.cabin", "enum")]),
        ({"trip": {"days": 2, "meals": 1}}, [("trip", "additionalProperties")]),
        ({"trip": {"days": 2}, "note": ""}, [("", "additionalProperties")]),
        ({"trip": {}}, [("trip", "required")]),
        ({"trip": {"days": 2, "cabin": None}}, [("trip.cabin", "enum"), ("trip.cabin", "type")]),
    ],
)
def test_f07_nested_closed_object(arguments, expected):
    tools = ToolSet.load([spec(TRIP)])
    call = ToolCall("f", arguments)
    before = json.dumps(arguments)
    assert [(error.path, error.kind) for error in tools.check(call)] == expected
    assert json.dumps(call.arguments) == before  # graded as sent: no default added


NODE = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/n",
}


def test_f08_references(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a schema must not open files or connections")

    monkeypatch.setattr(socket, "socket", never)
    monkeypatch.setattr(socket, "getaddrinfo", never)
    monkeypatch.setattr("builtins.open", never)
    tools = ToolSet.load(
        [
            spec(NODE, "good"),
            spec({"$ref": "http://schemas.invalid/t.json"}, "web"),
            spec({"$ref": "file:///t.json"}, "file"),
            spec({"$ref": "#"}, "loop"),
            spec({"type": "object", "properties": {}}, "plain"),
        ]
    )
    assert set(tools.tools) == {"good", "plain"}
    reasons = dict(tools.refused)
    assert set(reasons) == {"web", "file", "loop"}
    assert "leaves the document" in reasons["web"] and "back to itself" in reasons["loop"]
    assert tools.check(ToolCall("good", {"v": 1, "next": {"v": 2, "next": None}})) == []
    assert tools.check(ToolCall("good", {"v": 1, "next": {"v": "x"}})) != []


def test_boolean_is_not_the_number_of_an_enum_or_const():
    assert faults({"enum": [0, 1]}, False) == [("x", "enum")]
    assert faults({"const": 1}, True) == [("x", "const")]
    assert faults({"type": "boolean"}, 1) == [("x", "type")]  # F15: {"flag": 1}


def test_paths_of_list_items():
    schema = {"type": "array", "items": {"type": "object", "properties": {"to": {"type": "string"}}}}
    assert faults(schema, [{"to": "a"}, {"to": 3}]) == [("x[1].to", "type")]


def test_unknown_tool_and_arguments_that_are_no_object():
    tools = ToolSet.load([spec(TRIP)])
    assert [error.kind for error in tools.check(ToolCall("g", {}))] == ["unknown_tool"]
    assert [error.kind for error in tools.check(ToolCall("f", [1]))] == ["type"]
    assert [error.kind for error in tools.check(ToolCall(None, {}))] == ["unknown_tool"]


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {1: 2}, {"k": {1, 2}}, float("nan"), float("inf")])
def test_what_is_not_json_is_a_typed_error(value):
    schema = {"type": ["string", "object", "number"], "maxLength": 9, "additionalProperties": {"type": "integer"}}
    assert [kind for _, kind in faults(schema, value)] in (["not_json"], ["type"])


def test_deep_arguments_are_a_typed_error():
    value: list = []
    for _ in range(5000):
        value = [value]
    assert [kind for _, kind in faults({}, value)] == ["depth"]


def test_messages_are_short_and_do_not_show_the_right_value():
    tools = ToolSet.load([spec(TRIP)])
    (error,) = tools.check(ToolCall("f", {"trip": {"days": 1, "cabin": "x" * 10_000}}))
    assert len(error.message) <= 300 and "eco" not in error.message
    many = ToolSet.load([spec({"type": "object", "additionalProperties": {"type": "string"}})])
    assert len(many.check(ToolCall("f", {str(i): i for i in range(1000)}))) == 20


def test_dialects():
    tools = ToolSet.load(
        [
            {"name": "bare", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
            {"name": "from_mcp", "inputSchema": {"type": "object", "required": ["a"]}, "outputSchema": {"type": "object"}},
            {
                "name": "math.bfcl",
                "parameters": {
                    "type": "dict",
                    "properties": {
                        "a": {"type": "float"},
                        "b": {"type": "tuple", "items": {"type": "integer"}},
                        "c": {"type": "any"},
                        "d": {"type": "ArrayList"},
                        "e": {"type": "String"},
                    },
                },
            },
            {"name": "typed", "parameters": {"type": "object"}, "return": {"type": "string"}},
        ]
    )
    assert not tools.refused
    assert tools.tools["from_mcp"].response == {"type": "object"}
    assert tools.check(ToolCall("from_mcp", {}))[0].kind == "required"
    good = {"a": 1, "b": [1], "c": {"x": None}, "d": [], "e": "s"}
    assert tools.check(ToolCall("math.bfcl", good)) == []
    bad = {"a": True, "b": ["1"], "d": "no", "e": 4}
    assert [error.path for error in tools.check(ToolCall("math.bfcl", bad))] == ["a", "b[0]", "d", "e"]
    assert tools.tools["typed"].response == {"type": "string"}


def test_null_keywords_mean_absent():
    padded = {
        "type": "object",
        "properties": {"a": {"type": "integer", "enum": None, "anyOf": []}, "b": None},
        "required": None,
    }
    tools = ToolSet.load([spec(padded)])
    assert tools.tools["f"].parameters == {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert load_tool(spec({"properties": {"a": {"default": None, "const": None}}})).parameters["properties"]["a"] == {
        "default": None,
        "const": None,
    }


def test_no_parameters_is_an_object_of_anything():
    assert ToolSet.load([{"name": "ping"}, {"name": "pong", "parameters": None}]).check(ToolCall("ping", {})) == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (7, "must be an object"),
        ({"type": "function", "function": []}, "must be an object"),
        ({"name": ""}, "name"),
        ({"name": "a\x00b"}, "printable"),
        ({"name": "f", "description": 3}, "description"),
        ({"name": "f", "parameters": [1]}, "schema"),
        ({"name": "f", "parameters": {"type": "string"}}, "must describe an object"),
        ({"name": "f", "parameters": {"properties": {"a": {"type": "strin"}}}}, "unknown type"),
        ({"name": "f", "parameters": {"required": "a"}}, "array"),
        ({"name": "f", "parameters": {"properties": {"a": {"pattern": "["}}}}, "regex"),
        ({"name": "f", "parameters": {"minimum": float("nan")}}, "not JSON"),
        ({"name": "f", "description": "x" * 300_000}, "characters of JSON"),
        ({"name": "f", "response": {"$ref": "#/nowhere"}}, "response: $ref"),
    ],
)
def test_a_bad_tool_is_refused_and_the_rest_stay(bad, reason):
    tools = ToolSet.load([{"name": "before"}, bad, {"name": "after"}])
    assert set(tools.tools) == {"before", "after"}
    assert len(tools.refused) == 1 and reason in tools.refused[0][1]


def test_the_second_tool_of_a_name_is_refused():
    tools = ToolSet.load([spec(TRIP), spec({"type": "object"})])
    assert tools.tools["f"].parameters == TRIP and tools.refused == [("f", "a tool of this name is already loaded")]


def test_response_is_kept_and_hidden():
    tool = load_tool(spec(TRIP, response={"type": "object", "properties": {"ok": {"type": "boolean"}}}))
    assert tool.response["properties"] == {"ok": {"type": "boolean"}}
    assert [error.path for error in tool.check_response({"ok": 1})] == ["ok"]
    assert tool.check_response({"ok": True}) == []
    (shown,) = public_specs([tool.spec])
    assert "response" not in shown["function"] and shown["function"]["parameters"] == TRIP
    assert "response" in tool.spec["function"]  # the original is untouched
    assert public_specs([{"name": "bare", "response": {}}]) == [{"name": "bare"}]


def test_specs_load_again():
    tools = ToolSet.load([spec(TRIP, response={"type": "object"}, description="d")])
    assert ToolSet.load(tools.specs).specs == tools.specs


def test_canonical_form():
    assert (
        canonical(ToolCall("f", {"b": 1.0, "a": [True, -0.0, "é"]}, "id1"))
        == '{"arguments":{"a":[true,0,"é"],"b":1},"name":"f"}'
    )
    same = call_hash(ToolCall("f", {"city": "Oslo", "days": 3.0}, "x"))
    assert same == call_hash(ToolCall("f", {"days": 3, "city": "Oslo"}, "y"))
    assert same != call_hash(ToolCall("f", {"city": "Oslo", "days": "3"}))
    assert call_hash(ToolCall("f", {"flag": True})) != call_hash(ToolCall("f", {"flag": 1}))  # F15
    assert call_hash(ToolCall("f", {})) != call_hash(ToolCall("g", {}))
    assert len(call_hash(ToolCall("f", {"x": "\ud800", "n": float("nan"), "big": 10**5000}))) == 32


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def rewritten(value, order):
    """The same value with the keys of every object in another order, and whole numbers in the other notation."""
    if isinstance(value, dict):
        return {key: rewritten(value[key], order) for key in sorted(value, key=lambda key: hash((key, order)))}
    if isinstance(value, list):
        return [rewritten(part, order) for part in value]
    return float(value) if type(value) is int and abs(value) < 2**53 else value


@property_tests(arguments=st.dictionaries(st.text(max_size=3), json_values, max_size=4), order=st.integers())
def canonical_is_stable(arguments, order):
    call, same = ToolCall("f", arguments, "x"), ToolCall("f", rewritten(arguments, order), "y")
    assert canonical(call) == canonical(same) and call_hash(call) == call_hash(same)
    read = json.loads(canonical(call))
    assert canonical(ToolCall(read["name"], read["arguments"])) == canonical(call)  # and it is JSON that says the same


test_canonical_is_stable, test_canonical_is_stable_nightly = canonical_is_stable

small = st.integers(-3, 3)
scalars = st.none() | st.booleans() | small | st.sampled_from([0.5, 1.0, 2.5]) | st.text("ab", max_size=3)
near_values = st.recursive(  # few enough that schemas and values often meet
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
TYPES = ["integer", "number", "string", "boolean", "null", "array", "object", ["string", "null"], ["integer", "array"]]
schemas = st.recursive(
    st.booleans()
    | st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(TYPES),
            "enum": st.lists(near_values, min_size=1, max_size=3),
            "const": near_values,
            "minimum": small,
            "exclusiveMaximum": small,
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(0, 3),
            "pattern": st.sampled_from(["^a", "b$", "a|b", "^[ab]{2}$"]),
            "maxItems": st.integers(0, 2),
            "uniqueItems": st.booleans(),
            "minProperties": st.integers(0, 2),
        },
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2)},
            optional={
                "required": st.lists(st.sampled_from("abc"), unique=True),
                "additionalProperties": inner,
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=1),
                "propertyNames": inner,
                "dependentRequired": st.just({"a": ["b"]}),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"minItems": st.integers(0, 2), "prefixItems": st.lists(inner, min_size=1, max_size=2), "contains": inner},
        ),
        st.fixed_dictionaries({"if": inner, "then": inner}, optional={"else": inner}),
        st.fixed_dictionaries({"not": inner}),
        *(st.fixed_dictionaries({keyword: st.lists(inner, min_size=1, max_size=2)}) for keyword in ("anyOf", "oneOf", "allOf")),
    ),
    max_leaves=4,
)


@property_tests(
    properties=st.dictionaries(st.sampled_from("abc"), schemas, max_size=3),
    arguments=st.dictionaries(st.sampled_from("abcd"), near_values | json_values, max_size=3),
)
def agrees_with_the_reference_validator(properties, arguments):
    jsonschema = pytest.importorskip("jsonschema")
    schema = {"type": "object", "properties": properties}
    tools = ToolSet.load([spec(schema)])
    assert not tools.refused
    expected = jsonschema.Draft202012Validator(schema).is_valid(arguments)
    assert (tools.check(ToolCall("f", arguments)) == []) == expected


test_agrees_with_the_reference, test_agrees_with_the_reference_nightly = agrees_with_the_reference_validator
