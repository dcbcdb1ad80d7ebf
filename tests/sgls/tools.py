"""Tools and stand-in backends of these tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from slca.sgls.backends import BackendError, Reply, Request
from slca.tasks.schema import ToolSet


def spec(
    name: str, properties: dict[str, Any], required: Sequence[str] = (), response: dict[str, Any] | None = None
) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    function = {"name": name, "description": f"{name}.", "parameters": parameters}
    return {"type": "function", "function": function | ({"response": response} if response else {})}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
NOTE = record(id=STRING, title=STRING, body=STRING)
SPECS = [
    spec(
        "get_weather",
        {"city": STRING, "days": INTEGER, "flag": {"type": "boolean"}},
        ["city"],
        record(city=STRING, temp_c=INTEGER),
    ),
    spec("free_form", {"q": STRING}, ["q"]),
    spec(
        "notes.save",
        {"id": STRING, "title": STRING, "body": STRING},
        ["id", "title", "body"],
        record(saved={"type": "boolean"}),
    ),
    spec("notes.get", {"id": STRING}, ["id"], NOTE),
    spec("notes.list", {}, [], record(notes={"type": "array", "items": NOTE}, total=INTEGER)),
    spec("notes.delete", {"id": STRING}, ["id"], record(deleted={"type": "boolean"})),
    spec("set_cabin", {"cabin": {"enum": ["eco", "biz"]}, "trip": record(days={"type": "integer", "minimum": 1})}, ["cabin"]),
]
TOOLS = ToolSet.load(SPECS)


class Echo:
    """A backend that replies from a script (the last entry for ever); an entry may be a function of the request or an error."""

    name = identity = "echo"
    deterministic = False

    def __init__(self, *script: str | BackendError | Callable[[Request], Any]):
        self.script = list(script)
        self.requests: list[Request] = []
        self.lock = threading.Lock()

    def reply(self, request: Request) -> Reply:
        with self.lock:
            self.requests.append(request)
            entry = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        entry = entry(request) if callable(entry) else entry
        if isinstance(entry, Exception):
            raise entry
        return Reply(entry, 7, 30)

    def counts(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return
