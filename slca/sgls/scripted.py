"""The answers of the scripted backend: values from the response schema, and a small store of entities for state mode `kv`.

In `kv`, a call whose name says that it writes (`notes.save`, `delete_event`) leaves an entity (what was sent over what came
back) under "<noun>/<id>"; a later read of that noun says what the store holds, and one of a deleted entity is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slca.sgls.contract import DELETES, Contract, verb, words
from slca.tasks.values import respond, response_seed
from slca.types import Observation, ToolCall

_SMALL = frozenset({"a", "all", "an", "by", "for", "from", "in", "my", "of", "on", "the", "to"})
_IDENTIFIES = re.compile(r"(?:^|_)(id|key|number|code|name|path|title|email)$", re.IGNORECASE)
_STRENGTH = ("id", "key", "number", "code", "name", "path", "title", "email")
NOT_FOUND = {"error": {"code": "not_found", "message": "No such item."}}


def answer(contract: Contract, call: ToolCall, group: str, transcript: Sequence[tuple[ToolCall, Observation]] = ()) -> Any:
    """A believable body: deterministic in (group, tool, canonical arguments, transcript), arguments echoed where names match.

    Raises slca.tasks.values.Unsatisfiable where no value of the response schema is found.
    """
    return respond(
        contract.tool, call.arguments, response_seed(group), [(earlier, _value(seen)) for earlier, seen in transcript]
    )


def linked(call: ToolCall, transcript: Sequence[tuple[ToolCall, Observation]]) -> tuple[tuple[ToolCall, Observation], ...]:
    """The earlier exchanges that `respond` can tie to `call`: their result brought up a value that the call now uses.

    The rest changes nothing, so a call gets the same answer wherever in a rollout it is made.
    """
    used = [value for value in call.arguments.values() if isinstance(value, str | int) and not isinstance(value, bool)]

    def ties(earlier: ToolCall, observation: Observation) -> bool:
        new = [value for value in used if value not in earlier.arguments.values()]
        return bool(new) and any(value in item.values() for item in _objects(_value(observation)) for value in new)

    return tuple((earlier, observation) for earlier, observation in transcript if ties(earlier, observation))


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(part)


def _value(observation: Observation) -> Any:
    """The body as a value; None where it was an error or is no JSON."""
    try:
        return json.loads(observation.text) if observation.status == "ok" else None
    except (ValueError, RecursionError):
        return None


def answer_with_state(
    contract: Contract,
    call: ToolCall,
    group: str,
    state: Mapping[str, Any],
    transcript: Sequence[tuple[ToolCall, Observation]] = (),
) -> dict[str, Any]:
    """{"response": body, "state_patch": changes of the store}; pure in its arguments."""
    body = answer(contract, call, group, transcript)
    noun, arguments = _noun(call.name), dict(call.arguments)
    key = entity_key(call)
    if contract.writes:
        deletes = verb(call.name) in DELETES
        if deletes and key is not None and key in state and state[key] is None:
            return {"response": NOT_FOUND, "state_patch": {}}
        made = body if isinstance(body, dict) else {}
        key = key or f"{noun}/{_identity(made) or len(state)}"
        entity = None if deletes else {**(state.get(key) or {}), **made, **arguments}
        return {"response": body, "state_patch": {key: entity}}
    if key is not None and key in state:
        if state[key] is None:
            return {"response": NOT_FOUND, "state_patch": {}}
        return {"response": _overlaid(body, state[key], contract), "state_patch": {}}
    entities = {name: entity for name, entity in state.items() if name.startswith(f"{noun}/")}
    return {"response": _listed(body, entities, contract), "state_patch": {}}


def entity_key(call: ToolCall) -> str | None:
    """Store key of the entity that a call names, None where it names none."""
    named = _identity(call.arguments)
    return f"{_noun(call.name)}/{named}" if named is not None else None


def _noun(name: str) -> str:
    """What a tool is about: the words of its name but the verb, singular (`notes.save`, `get_note` -> `note`)."""
    kept = [word for word in words(name) if word not in _SMALL and word != verb(name)]
    return "_".join(word[:-1] if word.endswith("s") and word[-2:] not in ("ss", "us", "is") else word for word in kept)


def _identity(fields: Mapping[str, Any]) -> str | None:
    """The value of the field that names an entity best: an id before a name."""
    found = [(match.group(1).lower(), value) for name, value in fields.items() if (match := _IDENTIFIES.search(name))]
    usable = [(kind, value) for kind, value in found if isinstance(value, str | int) and not isinstance(value, bool)]
    return str(min(usable, key=lambda pair: _STRENGTH.index(pair[0]))[1]) if usable else None


def _overlaid(body: Any, entity: Mapping[str, Any], contract: Contract) -> Any:
    """`body` with the entity's values in fields of the same name, each taken only if the schema stays obeyed."""
    for path, name in _fields(body, entity):
        changed = _replaced(body, path, name, entity[name])
        if contract.violation(changed) is None:
            body = changed
    return body


def _fields(body: Any, entity: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(body, dict):
        for name, value in body.items():
            if name in entity:
                yield path, name
            elif len(path) < 2:
                yield from _fields(value, entity, (*path, name))


def _replaced(body: Any, path: Sequence[str], name: str, value: Any) -> Any:
    if not path:
        return {**body, name: value}
    return {**body, path[0]: _replaced(body[path[0]], path[1:], name, value)}


def _listed(body: Any, entities: Mapping[str, Any], contract: Contract) -> Any:
    """`body` whose first list of objects shows the live entities first and no deleted one."""
    if not isinstance(body, dict) or not entities:
        return body
    for name, items in body.items():
        if not (isinstance(items, list) and items and all(isinstance(item, dict) for item in items)):
            continue
        gone = {key.split("/", 1)[1] for key in entities}
        kept = [item for item in items if _identity(item) not in gone]
        made = [
            {field: entity.get(field, value) for field, value in items[0].items()} for entity in entities.values() if entity
        ]
        changed = {**body, name: made + kept}
        for field in ("total", "count"):
            if isinstance(body.get(field), int):
                changed[field] = len(changed[name])
        return changed if contract.violation(changed) is None else body
    return body
