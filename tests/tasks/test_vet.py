"""What could make validation slow or endless is refused or bounded when a schema is vetted."""

import pytest

from slca.tasks import vet
from slca.tasks.schema import ToolSet
from slca.types import ToolCall


def depth(schema):
    return vet.vet(vet.normalise(schema))


def test_plain_and_linearly_recursive_schemas_have_the_full_depth():
    assert depth({"type": "object", "properties": {"a": {"type": "string"}}}) == vet.MAX_DEPTH
    tree = {
        "$defs": {"t": {"properties": {"left": {"$ref": "#/$defs/t"}, "right": {"$ref": "#/$defs/t"}}}},
        "$ref": "#/$defs/t",
    }
    assert depth(tree) == vet.MAX_DEPTH


def test_doubling_recursion_is_bounded_by_depth():
    # Each level visits the next one twice: 2^(d+1) visits or so, at most MAX_COST.
    twice = {"$defs": {"t": {"anyOf": [{"properties": {"a": {"$ref": "#/$defs/t"}}}] * 2}}, "$ref": "#/$defs/t"}
    allowed = depth(twice)
    assert 10 <= allowed <= 17
    tools = ToolSet.load([{"name": "f", "parameters": twice}])
    value: dict = {}
    for _ in range(60):
        value = {"a": value}
    assert [error.kind for error in tools.check(ToolCall("f", value))] == ["depth"]


def test_reference_bombs_are_refused():
    bomb = {"$defs": {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(30)}, "$ref": "#/$defs/a0"}
    bomb["$defs"]["a30"] = {}
    with pytest.raises(vet.Refused, match="checks for one value"):
        depth(bomb)


@pytest.mark.parametrize(
    "loop",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}},
            "properties": {"x": {"$ref": "#/$defs/a"}},
        },
    ],
)
def test_cycles_on_the_same_value_are_refused(loop):
    with pytest.raises(vet.Refused, match="back to itself"):
        depth(loop)


@pytest.mark.parametrize(
    "reference", ["other.json", "http://x/y", "file:///etc/passwd", "#anchor", "#/$defs/none", "#/type", 3]
)
def test_bad_references_are_refused(reference):
    with pytest.raises(vet.Refused):
        depth({"type": "object", "properties": {"a": {"$ref": reference}}})


def test_pointer_escapes_and_lists_are_followed():
    schema = {"$defs": {"a/b~c": {"anyOf": [{"type": "string"}]}}, "properties": {"x": {"$ref": "#/$defs/a~1b~0c/anyOf/0"}}}
    assert vet.resolve(schema, "#/$defs/a~1b~0c/anyOf/0") == {"type": "string"}
    assert depth(schema) == vet.MAX_DEPTH


def test_deep_schemas_are_refused():
    schema: dict = {}
    for _ in range(2000):
        schema = {"items": schema}
    with pytest.raises(vet.Refused, match="levels"):
        vet.normalise(schema)
    assert ToolSet.load([{"name": "f", "parameters": {"properties": {"a": schema}}}]).refused[0][0] == "f"


@pytest.mark.parametrize("keyword", ["$id", "$anchor", "$dynamicRef", "$recursiveRef"])
def test_identifiers_that_move_the_base_are_refused_below_the_root(keyword):
    with pytest.raises(vet.Refused, match="not supported"):
        depth({"properties": {"a": {keyword: "x"}}})
    assert depth({"$id": "http://x/y", "type": "object"}) == vet.MAX_DEPTH


def test_patterns_run_in_linear_time():
    tools = ToolSet.load([{"name": "f", "parameters": {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}}])
    assert [error.kind for error in tools.check(ToolCall("f", {"a": "a" * 50_000 + "!"}))] == ["pattern"]


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(a{1000}){1000}"])
def test_patterns_beyond_the_linear_engine_are_refused(pattern):
    tools = ToolSet.load([{"name": "f", "parameters": {"properties": {"a": {"pattern": pattern}}}}, {"name": "g"}])
    assert [name for name, _ in tools.refused] == ["f"] and "g" in tools.tools


def test_translations():
    assert vet.normalise({"type": "dict", "properties": {"type": {"type": "float"}}}) == {
        "type": "object",
        "properties": {"type": {"type": "number"}},
    }
    assert vet.normalise({"type": "string", "nullable": True, "enum": ["a"]}) == {
        "type": ["string", "null"],
        "enum": ["a", None],
    }
    assert vet.normalise({"minimum": 2, "exclusiveMinimum": True}) == {"exclusiveMinimum": 2}
    assert vet.normalise({"minimum": 2, "exclusiveMinimum": False}) == {"minimum": 2}
    assert vet.normalise({"items": [{"type": "int"}, {}]}) == {"prefixItems": [{"type": "integer"}, {}]}
    assert vet.normalise({"enum": [None, 1], "default": None}) == {"enum": [None, 1], "default": None}
    assert vet.normalise({"type": ["string", None]}) == {"type": ["string"]}
    assert vet.normalise(True) is True
