"""Requests that fix the form of an answer: JSON that follows a schema, a call that must be made (extra: `grammar`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from slca.chat.strict_json import Reader
from slca.chat.template import Template
from slca.rollout.constraint import Constraint as Held
from slca.rollout.constraint import words
from slca.serve.errors import ApiError
from slca.sgls.grammar import Constraint, available, checked, vocabulary
from slca.types import ToolCall

if TYPE_CHECKING:
    from jaxtyping import Int

log = logging.getLogger(__name__)

MAX_SCHEMA = 64 * 1024  # characters of a schema
_PROBE = ToolCall("probe_of_calls", {"a": 1, "b": 2}, "call_1")


class Fenced:
    """A row's grammar on the device thread: whatever it throws ends its own row (no token is allowed any more), not the engine."""

    def __init__(self, inner: Held, size: int):
        self._inner: Held | None = inner
        self._none = np.zeros(words(size), np.int32)

    def mask(self) -> Int[np.ndarray, " W"]:
        return self._try(lambda inner: inner.mask(), self._none)

    def advance(self, token: int) -> None:
        self._try(lambda inner: inner.advance(token), None)

    def stopped(self) -> bool:
        return self._try(lambda inner: inner.stopped(), False)

    def _try(self, call: Callable[[Held], Any], otherwise: Any) -> Any:
        try:
            return otherwise if self._inner is None else call(self._inner)
        except BaseException as error:  # the grammar library's own failures are no Exceptions
            log.error("a grammar failed: %s", type(error).__name__)
            self._inner = None
            return otherwise


@dataclass(frozen=True)
class Opening:
    """How the chat template writes a call: text before and after its JSON, the key of the arguments, separators of the JSON."""

    before: str
    after: str
    key: str
    separators: tuple[str, str]


class Grammars:
    """JSON Schemas to what holds a row to them, over one tokenizer. Methods may run in any thread."""

    def __init__(self, template: Template, constrained: bool):
        self._template, self._usable = template, constrained and available()

    @cached_property
    def _vocabulary(self) -> Any:
        return vocabulary(self._template.tokenizer)

    @cached_property
    def opening(self) -> Opening | None:
        """None where calls are not JSON of one shape."""
        try:
            return _opening(self._template)
        except ValueError:
            return None

    def held(self, schema: Mapping[str, Any], param: str, separators: tuple[str, str] = (", ", ": ")) -> Held:
        """What holds one row to `schema`. Raises ApiError where there is no such thing."""
        if not self._usable:
            raise ApiError(
                400, f"{param} needs constrained decoding, which this server lacks", param=param, code="unsupported_parameter"
            )
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA:
            raise ApiError(400, f"{param}: a schema of {len(text):,} characters, at most {MAX_SCHEMA:,}", param=param)
        try:
            held = Fenced(Constraint(self._vocabulary, _grammar(text, separators)), self._vocabulary.vocab_size)
        except ValueError as error:
            said = f"{param}: no grammar for this schema: {' '.join(str(error).split())[:300]}"
            raise ApiError(400, said, param=param) from None
        if not all(held.mask().any() for _ in range(2)):  # one that breaks at the first look allows nothing at the second
            said = f"{param}: nothing can be written under this schema: it is too large, or demands itself without an end"
            raise ApiError(400, said, param=param)
        return held

    def call_opening(self) -> Opening:
        """Raises ApiError where the chat template's calls cannot be forced."""
        if self.opening is None:
            said = "tool_choice: calls of this chat template cannot be forced"
            raise ApiError(400, said, param="tool_choice", code="unsupported_parameter")
        return self.opening

    def call(self, tools: Mapping[int, Mapping[str, Any]]) -> Held:
        """What holds one row to one call of one of `tools` (by their place in the request), behind its opening. Raises ApiError that
        names the parameters at fault."""
        opening = self.call_opening()
        try:
            return self.held(call_schema(list(tools.values()), opening.key), "tool_choice", opening.separators)
        except ApiError as error:
            for place, tool in tools.items() if error.code is None else ():
                self.held(call_schema([tool], opening.key), f"tools[{place}].function.parameters", opening.separators)
            raise


@lru_cache(maxsize=256)
def _grammar(text: str, separators: tuple[str, str]) -> str:
    layout = {"whitespace_flexible": False, "item_separator": separators[0], "key_separator": separators[1]}
    return checked(json.loads(text), layout)


def call_schema(tools: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """JSON Schema of one call: {"name": ..., key: {...}}. References inside a tool's parameters keep their meaning."""
    forms, definitions = [], {}
    for i, tool in enumerate(tools):
        function = tool["function"]
        parameters = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
        definitions[f"tool{i}"] = _moved({**parameters, "type": "object"}, f"#/$defs/tool{i}")
        properties = {"name": {"const": function["name"]}, key: {"$ref": f"#/$defs/tool{i}"}}
        forms.append({"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": False})
    return {"$defs": definitions, "anyOf": forms}


def _moved(schema: Any, root: str) -> Any:
    """`schema` with its document-local references pointing below `root`."""
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _moved(value, root) for key, value in schema.items()}
    if isinstance(ref := moved.get("$ref"), str) and (ref == "#" or ref.startswith("#/")):
        moved["$ref"] = root + ref[1:]
    return moved


def _opening(template: Template) -> Opening:
    """Raises ValueError where the template does not write a call as one JSON object {"name", arguments}."""
    ids = template.assistant([], {"role": "assistant", "content": "", "tool_calls": [_PROBE.message()]})
    text = template.tokenizer.decode(ids[:-1])
    start = text.index("{")
    value, end, fault = Reader().read(text, start)
    if fault is not None or not isinstance(value, dict) or list(value)[:1] != ["name"] or len(value) != 2:
        raise ValueError("calls are not JSON objects of a name and arguments")
    body = text[start:end]
    separators = (", " if ', "b"' in body else ",", ": " if '"name": ' in body else ":")
    return Opening(text[:start], text[end:], list(value)[1], separators)
