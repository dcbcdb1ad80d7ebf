"""Seeded faults of the simulated world: which calls meet one is a pure function of (prompt, call, attempt).

All rollouts of a group therefore meet the same world, and the same call again may succeed, as with real services.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from slca.types import Observation

KINDS = ("timeout", "429", "500", "empty", "malformed", "stale")

# What the policy reads. `stale` has no text: the call is answered from another, older world.
TEXTS = {
    "timeout": json.dumps({"error": {"code": 504, "message": "The upstream service timed out."}}),
    "429": json.dumps({"error": {"code": 429, "message": "Too many requests."}}),
    "500": json.dumps({"error": {"code": 500, "message": "Internal server error."}}),
    "empty": "",
    "malformed": '{"status": "success", "data": {"items": [{"id": ',
}


def draw(rate: float, kinds: Sequence[str], group: str, call_hash: str, attempt: int = 0) -> str | None:
    """The fault that this call of this group meets at this attempt, or None. rate: share of calls, 0..1."""
    if rate <= 0 or not kinds:
        return None
    digest = hashlib.blake2b(
        f"fault\0{group}\0{call_hash}\0{attempt}".encode("utf-8", "surrogatepass"), digest_size=16
    ).digest()
    if int.from_bytes(digest[:8], "big") >= rate * 2**64:
        return None
    return kinds[int.from_bytes(digest[8:], "big") % len(kinds)]


def observation(kind: str, provenance: Mapping[str, Any]) -> Observation:
    """The observation of a fault other than `stale`: the simulated API's own error, so the rollout stays scored."""
    return Observation(TEXTS[kind], "tool_error", provenance={**provenance, "source": "fault", "fault": kind})
