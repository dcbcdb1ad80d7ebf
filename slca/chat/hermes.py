"""Tool use for chat templates that know no tools (SmolLM2, Gemma): the Hermes format, written into plain messages.

Tools go into the system message, calls into assistant text, results into a user turn; consecutive results share one turn.
The wording is the one Qwen's templates print, so a policy meets one format everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

INTRODUCTION = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
INSTRUCTION = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> "
    'XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def plain(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The same conversation in system, user and assistant messages with `content` only."""
    out: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        role, content = message["role"], message.get("content", "")
        if role == "tool":
            response = f"<tool_response>\n{content}\n</tool_response>"
            if i and messages[i - 1]["role"] == "tool":
                out[-1]["content"] += "\n" + response
            else:
                out.append({"role": "user", "content": response})
        elif role == "assistant":
            thought = [f"<think>\n{message['reasoning_content']}\n</think>\n"] if message.get("reasoning_content") else []
            calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
            out.append({"role": "assistant", "content": "\n".join([*thought, *([content] if content else []), *calls])})
        else:
            out.append({"role": role, "content": content})
    return _with_tools(out, tools) if tools else out


def _call(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    prompt = INTRODUCTION + lines + INSTRUCTION
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{prompt}"}, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]
