"""Real API schemas: AWS operations from botocore's service models, with input and output shapes.

Shapes are cut to what fits a prompt: required fields, a few optional scalar ones, short descriptions, recursion ended.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

SERVICES = (
    "sqs", "sns", "dynamodb", "kms", "secretsmanager", "ssm", "logs", "events", "cloudtrail", "ecr", "ecs", "efs", "eks", "firehose",
    "kinesis", "athena", "route53", "acm", "cognito-identity", "codecommit", "codebuild", "elasticache", "batch", "backup", "polly",
    "translate", "rekognition", "stepfunctions", "xray", "lambda",
)  # fmt: skip
MAX_REQUIRED = 3  # operations that demand more arguments are left out
MAX_OPTIONAL = 2  # optional arguments kept
MAX_FIELDS = 5  # fields kept of a result object
MAX_LEVELS = 3  # nesting kept
MAX_DESCRIPTION = 80  # characters

_PLUMBING = frozenset(
    "dryrun nexttoken marker nextmarker continuationtoken clienttoken clientrequesttoken idempotencytoken requestpayer expectedbucketowner".split()
)  # optional fields about the transport, not the matter
_SCALARS = {
    "string": "string", "character": "string", "blob": "string", "timestamp": "string", "boolean": "boolean",
    "integer": "integer", "long": "integer", "bigInteger": "integer", "float": "number", "double": "number", "bigDecimal": "number",
}  # fmt: skip


def botocore(services: Sequence[str] = (), operations: int = 10, seed: int = 0) -> list[dict[str, Any]]:
    """Specs of up to `operations` operations of each service (a seeded choice), `service_operation` by name.

    services: () = SERVICES (about 300 operations). Raises ImportError when botocore is not installed, ValueError for an
    unknown service.
    """
    loader = _loader()
    known = set(loader.list_available_services("service-2"))
    specs = []
    for service in services or [name for name in SERVICES if name in known]:
        if service not in known:
            raise ValueError(f"botocore has no service {service!r}")
        every = [spec for spec in _service_specs(service) if spec is not None]
        chosen = Random(f"{seed}|{service}").sample(every, min(operations, len(every)))
        specs.extend(sorted(chosen, key=lambda spec: spec["function"]["name"]))
    return specs


@lru_cache(maxsize=1)
def _loader() -> Any:
    try:
        from botocore.loaders import Loader
    except ImportError:
        raise ImportError("tools from AWS need the package botocore: pip install 'slca[botocore]'") from None
    return Loader()


@lru_cache(maxsize=64)
def _service_specs(service: str) -> tuple[dict[str, Any] | None, ...]:
    model = _loader().load_service_model(service, "service-2")
    return tuple(_spec(service, name, model) for name in sorted(model["operations"]))


def _spec(service: str, name: str, model: Mapping[str, Any]) -> dict[str, Any] | None:
    operation, shapes = model["operations"][name], model["shapes"]
    if operation.get("deprecated") or "output" not in operation:
        return None
    source = shapes[operation["input"]["shape"]] if "input" in operation else {"members": {}}
    if len(source.get("required", ())) > MAX_REQUIRED:
        return None
    parameters = _object(source, shapes, 0, MAX_OPTIONAL, scalar_only=True)
    response = _object(shapes[operation["output"]["shape"]], shapes, 0, MAX_FIELDS, scalar_only=False)
    if parameters is None or not response or not response["properties"]:
        return None
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return {
        "type": "function",
        "function": {
            "name": f"{service.replace('-', '')}_{snake}",
            "description": _sentence(operation.get("documentation", "")) or f"{name} of {service}",
            "parameters": parameters,
            "response": response,
        },
    }


def _object(
    shape: Mapping[str, Any], shapes: Mapping[str, Any], level: int, optional: int, scalar_only: bool
) -> dict[str, Any] | None:
    """A structure as an object schema: all required members, then optional ones in order. None = a required one cannot be cut."""
    required = list(shape.get("required", ()))
    properties: dict[str, Any] = {}
    for name, member in shape.get("members", {}).items():
        target = shapes[member["shape"]]
        if name not in required:
            plain = target["type"] in _SCALARS and target["type"] != "blob"
            if optional <= 0 or (scalar_only and not plain) or member.get("deprecated") or name.lower() in _PLUMBING:
                continue
        schema = _schema(target, shapes, level + 1, scalar_only)
        if schema is None:
            if name in required:
                return None
            continue
        properties[name] = schema
        optional -= name not in required
    return {"type": "object", "properties": properties, "required": required}


def _schema(shape: Mapping[str, Any], shapes: Mapping[str, Any], level: int, scalar_only: bool) -> dict[str, Any] | None:
    kind = shape["type"]
    if kind in _SCALARS:
        return _scalar(shape)
    if level > MAX_LEVELS:
        return None
    if kind == "list":
        items = _schema(shapes[shape["member"]["shape"]], shapes, level + 1, scalar_only)
        if items is None:
            return None
        return {"type": "array", "items": items, **_bounds(shape, "minItems", "maxItems")}
    if kind == "map":
        part = _schema(shapes[shape["value"]["shape"]], shapes, level + 1, scalar_only)
        return None if part is None else {"type": "object", "additionalProperties": part}
    return _object(shape, shapes, level, 0 if scalar_only else MAX_FIELDS - level, scalar_only)


def _scalar(shape: Mapping[str, Any]) -> dict[str, Any]:
    kind = shape["type"]
    if kind == "timestamp":
        return {"type": "string", "format": "date-time"}
    if kind == "blob":
        return {"type": "string", "format": "byte"}
    schema: dict[str, Any] = {"type": _SCALARS[kind]}
    if shape.get("enum"):
        schema["enum"] = list(shape["enum"])[:8]
    elif schema["type"] == "string":
        schema.update(_bounds(shape, "minLength", "maxLength"))
    elif schema["type"] != "boolean":
        schema.update(_bounds(shape, "minimum", "maximum"))
    return schema


def _bounds(shape: Mapping[str, Any], low: str, high: str) -> dict[str, Any]:
    """Bounds that say something: not "at least 0 or 1 character", not "at most thousands"."""
    out = {}
    if shape.get("min", 0) > 1 or (low == "minimum" and "min" in shape):
        out[low] = shape["min"]
    if shape.get("max", 10**9) <= 256 or (high == "maximum" and "max" in shape):
        out[high] = shape["max"]
    return out


def _sentence(documentation: str) -> str:
    text = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", documentation))).strip()
    sentences = [part.rstrip(".") for part in re.split(r"(?<=[a-z)])\. ", text.replace(" .", "."))]
    first = next(
        (part for part in sentences if not re.search("not supported|[Ee]nd of support|deprecated", part)), sentences[0]
    )
    return first if len(first) <= MAX_DESCRIPTION else first[: MAX_DESCRIPTION - 1].rsplit(" ", 1)[0]
