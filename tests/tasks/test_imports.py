"""Tools from function lists, MCP and OpenAPI."""

import contextlib
import copy
import random

import pytest

from slca.tasks.imports import functions, mcp, openapi
from slca.tasks.schema import ToolSet
from slca.tasks.values import respond
from slca.types import ToolCall


def test_functions():
    assert functions([{"name": "a"}]) == functions({"tools": [{"name": "a"}]}) == functions({"name": "a"}) == [{"name": "a"}]
    with pytest.raises(ValueError, match="list or an object"):
        functions("x")


def test_mcp():
    reply = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "a.b", "title": "T", "inputSchema": {"type": "object", "required": ["x"]}, "outputSchema": {"type": "object"}}]}}  # fmt: skip
    expected = {
        "type": "function",
        "function": {
            "name": "a.b",
            "description": "T",
            "parameters": {"type": "object", "required": ["x"]},
            "response": {"type": "object"},
        },
    }
    assert mcp(reply) == mcp(reply["result"]) == mcp(reply["result"]["tools"]) == [expected]
    with pytest.raises(ValueError, match="tools"):
        mcp({"tools": 3})


PETS = {
    "openapi": "3.0.3",
    "paths": {
        "/pets": {
            "parameters": [{"name": "shop", "in": "query", "schema": {"type": "string"}}],
            "get": {
                "operationId": "listPets",
                "summary": "List pets",
                "parameters": [
                    {"$ref": "#/components/parameters/Limit"},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                ],
                "responses": {
                    "default": {"description": "error"},
                    "200": {"content": {"application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}}}}},
                },
            },
            "post": {
                "requestBody": {"$ref": "#/components/requestBodies/NewPet"},
                "responses": {201: {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}},
            },
        },
        "/pets/{id}": {
            "put": {
                "operationId": "replacePet",
                "parameters": [{"name": "id", "in": "path", "required": True, "description": "Which", "schema": {"type": "integer"}}],
                "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}},
            },
            "delete": {"operationId": "dropPet", "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"$ref": "other.yaml#/Id"}}]},
        },
    },
    "components": {
        "parameters": {"Limit": {"name": "limit", "in": "query", "required": True, "schema": {"type": "integer", "maximum": 9}}},
        "requestBodies": {"NewPet": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}},
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["id", "name"],
                "properties": {
                    "id": {"type": "integer"},
                    "name": {"type": "string", "nullable": True},
                    "friends": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}},
                },
            }
        },
    },
}  # fmt: skip


def test_openapi():
    tools = ToolSet.load(openapi(PETS))
    assert set(tools.tools) == {"listPets", "post_pets", "replacePet"}
    assert [name for name, _ in tools.refused] == ["dropPet"]  # a reference into another file
    listing = tools.tools["listPets"]
    assert set(listing.parameters["properties"]) == {"shop", "limit"} and listing.parameters["required"] == ["limit"]
    assert listing.description == "List pets"
    assert tools.check(ToolCall("listPets", {"limit": 10}))[0].kind == "maximum"
    assert listing.response["type"] == "array" and listing.check_response([{"id": "x", "name": "n"}])[0].path == "[0].id"
    assert tools.check(ToolCall("post_pets", {"id": 1, "name": None, "friends": [{"id": 2, "name": "b"}]})) == []
    assert [
        error.path
        for error in tools.check(ToolCall("post_pets", {"id": 1, "name": "a", "friends": [{"id": "2", "name": "b"}]}))
    ] == ["friends[0].id"]
    # `id` is both in the path and in the body: the body stays whole
    assert set(tools.tools["replacePet"].parameters["required"]) == {"id", "body"}
    for tool in tools.tools.values():
        assert tool.check_response(respond(tool, {"limit": 3}, 0)) == []


@pytest.mark.parametrize("document", [{"swagger": "2.0"}, [], {"openapi": 3}, {"openapi": "3.1.0", "paths": []}])
def test_not_openapi(document):
    with pytest.raises(ValueError):
        openapi(document)
    assert openapi({"openapi": "3.1.0"}) == []


def test_circular_component_references_end():
    loop = {"openapi": "3.1.0", "paths": {"/x": {"$ref": "#/paths/~1x"}}}
    assert openapi(loop) == []


def places(node, place=()):
    """The place of every value inside `node`."""
    yield place
    parts = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, part in parts:
        yield from places(part, (*place, key))


JUNK = [
    None,
    True,
    -1,
    1.5,
    "",
    "x",
    "#/components/schemas/Pet",
    [],
    [None],
    [[1]],
    {},
    {"a": 1},
    {"$ref": "#/"},
    {"$ref": 3},
    "\ud800",
    {"type": 5},
]


def test_anything_may_stand_anywhere_in_a_document():
    """One operation that is wrong costs that operation; only a document that is none raises, and then ValueError."""
    rng, usable = random.Random(0), 0
    for _ in range(600):
        document = copy.deepcopy(PETS)
        for place in rng.sample([place for place in places(document) if place], rng.randint(1, 3)):
            node = document
            with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):  # inside what is junk by now
                for key in place[:-1]:
                    node = node[key]
                node[place[-1]] = copy.deepcopy(rng.choice(JUNK))
        with contextlib.suppress(ValueError):
            usable += len(ToolSet.load(openapi(document)).tools)
    assert usable > 800


def test_a_malformed_operation_is_refused_with_the_reason():
    paths = {"/a": {"get": {"operationId": "bad", "parameters": {"q": {}}}, "post": {"operationId": "good"}}}
    tools = ToolSet.load(openapi({"openapi": "3.1.0", "paths": paths}))
    assert list(tools.tools) == ["good"] and tools.refused == [("bad", "`parameters` must be a list, not dict")]
