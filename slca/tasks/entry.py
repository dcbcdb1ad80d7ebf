"""What the built-in catalogue says about a tool: its schemas as kinds (see `slca.tasks.words`), and how people speak of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A built-in tool.

    args, out: field -> kind; an argument kind that starts with "?" is optional. asks, unseen: query templates for training
    and for held-out tasks; a part in [brackets] is said only when its optional argument is given. says: the answer.
    gap: (argument, query without it for training, the same for held-out tasks). held_out: never part of training.
    """

    name: str
    description: str
    args: Mapping[str, str]
    out: Mapping[str, str]
    asks: tuple[str, ...]
    unseen: tuple[str, ...]
    says: str
    gap: tuple[str, str, str]
    held_out: bool = False

    def spec(self) -> dict[str, Any]:
        """The OpenAI function spec, `response` included."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {name: argument_schema(kind) for name, kind in self.args.items()},
                    "required": [name for name, kind in self.args.items() if not kind.startswith("?")],
                },
                "response": {
                    "type": "object",
                    "properties": {name: result_schema(kind) for name, kind in self.out.items()},
                    "required": list(self.out),
                    "additionalProperties": False,
                },
            },
        }


@dataclass(frozen=True)
class Link:
    """Two tools in sequence: `field` of the first result is `argument` of the second call."""

    first: str
    field: str
    second: str
    argument: str
    asks: tuple[str, ...]
    unseen: tuple[str, ...]


def argument_schema(kind: str) -> dict[str, Any]:
    """Short on purpose: these schemas stand in the prompt of very small models."""
    kind = kind.removeprefix("?")
    if "|" in kind:
        return {"type": "string", "enum": kind.split("|")}
    name = kind.split(" ")[0]
    if name in ("int", "num"):
        return {"type": "integer" if name == "int" else "number"}
    return {"type": "string", "format": "date"} if name == "date" else {"type": "string"}


def result_schema(kind: str) -> dict[str, Any]:
    """As precise as the kind is: the simulator draws from it. Pools are named by `format`."""
    if "|" in kind:
        return {"type": "string", "enum": kind.split("|")}
    name, _, rest = kind.partition(" ")
    if name in ("int", "num"):
        low, high = (int(part) if name == "int" else float(part) for part in rest.split(".."))
        return {"type": "integer" if name == "int" else "number", "minimum": low, "maximum": high}
    if name == "id":
        return {"type": "string", "pattern": f"^{rest}[0-9]{{4}}$"}
    return {"type": "string", "format": {"time": "clock"}.get(name, name)}
