"""What one tool promises, worked out once: its response schema, whether it writes, a digest for cache keys."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from slca.tasks.schema import Tool

# Leading verbs of tools that change a server's state. Names are all that most catalogues say about it.
DELETES = frozenset("cancel clear delete discard drop erase purge remove revoke terminate uninstall unregister".split())
WRITES = DELETES | frozenset(
    "accept activate add append apply approve archive assign attach book buy change close commit complete confirm copy create "
    "deactivate decline deploy disable edit enable insert install invite join leave lock log mark merge modify move open order "
    "pause pay place post publish purchase put register reject rename reply reschedule reserve reset restore resume save schedule "
    "send set share start stop submit subscribe tag toggle transfer turn unlock unsubscribe update upload withdraw write".split()
)
READS = frozenset(
    "check count describe fetch find get has head is list load look lookup query read retrieve search show view".split()
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Contract(NamedTuple):
    """tool: the vetted tool; function: its spec's function; digest: of that spec; response: JSON Schema of the body (None = undeclared);
    violation: first fault of a body, or None; writes: it changes the server's state; cost: declared price of a call."""

    tool: Tool
    function: Mapping[str, Any]
    digest: str
    response: dict[str, Any] | None
    violation: Callable[[Any], str | None]
    writes: bool
    cost: float = 0.0


@lru_cache(maxsize=8192)
def contract(tool: Tool) -> Contract:
    """The contract of a vetted tool (tools are compared by identity and themselves cached, so this is a look-up)."""
    function = tool.spec["function"]
    cost, described = float(function.get("cost", 0.0)), {key: part for key, part in function.items() if key != "cost"}
    digest = hashlib.blake2b(json.dumps(described, sort_keys=True).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def violation(value: Any) -> str | None:
        faults = tool.check_response(value)
        return f"{faults[0].kind}: {faults[0].message}" if faults else None

    return Contract(tool, function, digest, tool.response, violation, writes(tool.name), cost)


def verb(name: str) -> str:
    """The verb of a tool's name: the first one among the leading words of its last part (`notes.save`, `CreateBucket`,
    `sqs_delete_queue`); "" = none."""
    return next((word for word in words(name.rsplit(".", 1)[-1])[:2] if word in WRITES or word in READS), "")


def writes(name: str) -> bool:
    """Whether a tool of this name changes state: its verb says so."""
    return verb(name) in WRITES


def words(name: str) -> list[str]:
    """The words of an identifier, lower case: `notes.save` -> notes, save; `CreateBucket` -> create, bucket."""
    return [word.lower() for word in _WORDS.findall(name)]
