"""Tool specs from what people have: OpenAPI 3.x documents, MCP `tools/list` results, lists of function JSON.

Only plain data goes in and comes out. Nothing is vetted here: `ToolSet.load` does that, and names what it refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
_COMPONENT = "#/components/schemas/"
MAX_DESCRIPTION = 160  # characters kept of a tool's description


def functions(data: Any) -> list[Any]:
    """Function specs from a list, one spec, {"tools": [...]} or {"functions": [...]}. Raises ValueError on anything else."""
    if isinstance(data, Mapping):
        for key in ("tools", "functions"):
            if isinstance(data.get(key), list):
                return list(data[key])
        return [dict(data)]
    if isinstance(data, list):
        return list(data)
    raise ValueError(f"function specs must be a list or an object, got {type(data).__name__}")


def mcp(result: Any) -> list[dict[str, Any]]:
    """Specs from the result of an MCP server's `tools/list` (the JSON-RPC reply, its `result`, or the bare list)."""
    data = result.get("result", result) if isinstance(result, Mapping) else result
    found = data.get("tools") if isinstance(data, Mapping) else data
    if not isinstance(found, list):
        raise ValueError("an MCP tools/list result must hold a list `tools`")
    return [_mcp_tool(tool) if isinstance(tool, Mapping) else tool for tool in found]


def _mcp_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description") or tool.get("title") or "",
        "parameters": tool.get("inputSchema"),
    }
    if tool.get("outputSchema") is not None:
        function["response"] = tool["outputSchema"]
    return {"type": "function", "function": function}


def openapi(document: Any) -> list[dict[str, Any]]:
    """One spec an operation of an OpenAPI 3.x document: parameters and JSON body in, the first 2xx JSON body out.

    Component schemas come along as `$defs`. References out of the document stay as they are and are refused at load.
    Raises ValueError when this is no OpenAPI 3.x document.
    """
    version = document.get("openapi") if isinstance(document, Mapping) else None
    if not isinstance(version, str) or not version.startswith("3."):
        raise ValueError(f"not an OpenAPI 3.x document: `openapi` is {version!r}")
    paths = document.get("paths", {})
    if not isinstance(paths, Mapping):
        raise ValueError("`paths` must be an object")
    specs = []
    for path, item in paths.items():
        item = _follow(document, item)
        for method in _METHODS:
            if isinstance(item.get(method), Mapping):
                name = item[method].get("operationId") or re.sub(r"[\W_]+", "_", f"{method}_{path}").strip("_")
                try:
                    function = _operation(document, item[method], item.get("parameters"))
                except ValueError as error:  # the others stay usable
                    function = {"refused": str(error)}
                specs.append({"type": "function", "function": {"name": name, **function}})
    return specs


def _operation(document: Any, operation: Mapping[str, Any], shared: Any) -> dict[str, Any]:
    """Description and schemas of an operation. Raises ValueError where a part has not the shape that OpenAPI gives it."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in [
        *_list(shared, "parameters"),
        *_list(operation.get("parameters"), "parameters"),
    ]:  # the operation's own win: they come last
        parameter = _follow(document, parameter)
        if parameter.get("in") not in ("path", "query") or not isinstance(parameter.get("name"), str):
            continue  # headers and cookies belong to the transport
        schema = parameter.get("schema") or _json_schema(parameter) or {}
        properties[parameter["name"]] = _described(schema, parameter.get("description"))
        if parameter.get("required") and parameter["name"] not in required:
            required.append(parameter["name"])
    _add_body(document, _follow(document, operation.get("requestBody")), properties, required)
    function: dict[str, Any] = {
        "description": str(operation.get("summary") or operation.get("description") or "").strip()[:MAX_DESCRIPTION],
        "parameters": _with_definitions(document, {"type": "object", "properties": properties, "required": required}),
    }
    response = _response(document, _object(operation.get("responses"), "responses"))
    if response is not None:
        function["response"] = _with_definitions(document, response)
    return function


def _add_body(document: Any, body: Mapping[str, Any], properties: dict[str, Any], required: list[str]) -> None:
    """An object body gives its fields as arguments; any other body, or one whose fields clash, is the argument `body`."""
    schema = _json_schema(body)
    if schema is None:
        return
    flat = _follow(document, schema)
    fields = flat.get("properties")
    plain = isinstance(fields, Mapping) and not any(
        word in flat for word in ("allOf", "anyOf", "oneOf", "additionalProperties")
    )
    if isinstance(fields, Mapping) and plain and not any(name in properties for name in fields):
        properties.update(fields)
        if body.get("required"):
            required.extend(
                name for name in _list(flat.get("required"), "required") if isinstance(name, str) and name in fields
            )
        return
    properties["body"] = schema
    if body.get("required"):
        required.append("body")


def _response(document: Any, responses: Mapping[Any, Any]) -> Any:
    for status, response in sorted(responses.items(), key=lambda pair: str(pair[0])):
        if str(status).startswith("2"):
            schema = _json_schema(_follow(document, response))
            if schema is not None:
                return schema
    return None


def _json_schema(holder: Mapping[str, Any]) -> Any:
    """The schema under `content`, JSON media types first."""
    content = holder.get("content")
    if not isinstance(content, Mapping):
        return None
    for media in sorted(content, key=lambda name: "json" not in str(name)):
        if isinstance(content[media], Mapping) and content[media].get("schema") is not None:
            return content[media]["schema"]
    return None


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list | None):
        raise ValueError(f"`{what}` must be a list, not {type(value).__name__}")
    return value or []


def _object(value: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping | None):
        raise ValueError(f"`{what}` must be an object, not {type(value).__name__}")
    return value or {}


def _described(schema: Any, description: Any) -> Any:
    if isinstance(schema, Mapping) and isinstance(description, str) and "description" not in schema and "$ref" not in schema:
        return {**schema, "description": description.strip()[:MAX_DESCRIPTION]}
    return schema


def _follow(document: Any, node: Any) -> Mapping[str, Any]:
    """A `$ref` of the document followed (at most 16 hops); {} for anything that is no object."""
    for _ in range(16):
        if not isinstance(node, Mapping):
            return {}
        reference = node.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return node
        target: Any = document
        for part in reference[2:].split("/"):
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        node = target
    return {}


def _with_definitions(document: Any, schema: Any) -> Any:
    """The schema with every component schema it reaches under `$defs`, references rewritten."""
    components = _object(_object(document.get("components"), "components").get("schemas"), "components.schemas")
    wanted, definitions = [schema], {}
    while wanted:
        for name in _component_names(wanted.pop()):
            if name in components and name not in definitions:
                definitions[name] = components[name]
                wanted.append(components[name])
    if not definitions or not isinstance(schema, Mapping):
        return schema
    return json.loads(
        json.dumps({**schema, "$defs": definitions}, default=str).replace(f'"$ref": "{_COMPONENT}', '"$ref": "#/$defs/')
    )


def _component_names(node: Any) -> list[str]:
    text = json.dumps(node, default=str)  # dates of YAML files become text
    return re.findall(rf'"\$ref": "{re.escape(_COMPONENT)}([^"/]+)"', text)
