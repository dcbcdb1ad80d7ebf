"""Whether the parameters that a client gives its tools are schemas at all; else a model is asked to follow what nobody can read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs

from slca.serve.errors import ApiError
from slca.tasks import vet
from slca.tasks.vet import MAX_BYTES, Refused


def check_parameters(parameters: Mapping[str, Any] | None, where: str) -> None:
    """Raises ApiError that names `where` when the schema of a call's arguments is none, or describes no object."""
    if not parameters:
        return
    text = json.dumps(parameters)
    said = _fault(text) if len(text) <= MAX_BYTES else f"{len(text):,} characters of JSON, more than {MAX_BYTES:,}"
    if said:
        raise ApiError(400, f"{where}: {said}"[:500], param=where)


@lru_cache(maxsize=2048)
def _fault(text: str) -> str:
    """What is wrong with a schema, in one line; "" = nothing. Patterns are the grammar's business, where there is one."""
    try:
        schema = vet.normalise(json.loads(text))
        kinds = schema.get("type", "object")
        if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
            return f"must describe an object, the arguments of a call, not {kinds!r:.40}"
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        vet.vet(schema)
    except Refused as reason:
        return str(reason)
    except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
        return f"no JSON Schema: {str(error).splitlines()[0]:.200}"
    return ""
