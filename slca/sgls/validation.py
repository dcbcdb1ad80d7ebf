"""The two checks before any model is asked. Their texts are fixed and give no hint how to mend the call.

A simulator that coaches, or that makes up a result for a wrong call, teaches the policy that wrong calls work.
"""

from __future__ import annotations

from slca.tasks.schema import SchemaError, ToolSet
from slca.types import Observation, ToolCall

MAX_TEXT = 1000  # characters of an error text
MAX_FAULTS = 5  # faults told of one call
_CHECK = {"source": "check"}


def required(call: ToolCall, toolset: ToolSet) -> Observation | None:
    """The published checks, as published: tool known, required parameters present. None = passed."""
    tool = toolset.tools.get(call.name)
    if tool is None:
        return _refused("unknown_tool", f"Tool '{call.name:.200}' not found.")
    missing = [name for name in tool.parameters.get("required", ()) if name not in call.arguments]
    return _refused("invalid_arguments", f"Missing required parameters: {missing}") if missing else None


def jsonschema(call: ToolCall, toolset: ToolSet) -> Observation | None:
    """Tool known, arguments valid under its schema. None = passed."""
    if call.name not in toolset.tools:
        return _refused("unknown_tool", f"error: unknown_tool: there is no tool named {call.name!r:.200}")
    if faults := toolset.check(call):
        return _refused(
            "invalid_arguments", f"error: invalid_arguments: {'; '.join(dict.fromkeys(map(_fault, faults[:MAX_FAULTS])))}"
        )
    return None


def _fault(fault: SchemaError) -> str:
    """Where and what kind of fault; never the value, type or list that would have been right."""
    if fault.kind in ("required", "additionalProperties", "unevaluatedProperties", "depth", "not_json"):
        return fault.message
    where = fault.path or "arguments"
    return f"{where}: wrong type" if fault.kind == "type" else f"{where}: not an allowed value ({fault.kind})"


def _refused(status: str, text: str) -> Observation:
    return Observation(text[:MAX_TEXT], status, provenance=_CHECK)
