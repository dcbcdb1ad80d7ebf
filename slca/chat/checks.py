"""Start-up self-checks of a chat template: what training relies on is proved on a short conversation, or the run is refused.

Each failure below cost somebody a training run: a newline lost at every border, thinking stripped from earlier turns, a stop
token outside the loss, a parser for another format than the template writes (facts: transformers#29279, verl#6501, #6854,
TRL#5988, Qwen3#1826).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slca.chat.markers import CALL_CLOSE, CALL_OPEN, ENVIRONMENT_MARKERS, THINK_CLOSE
from slca.chat.parse import parse
from slca.types import ToolCall

if TYPE_CHECKING:
    from slca.chat.template import Template

# The published Llama 3.1 template takes the names of `builtin_tools` and joins key + '="' + value + '"': a number is a type
# error, a quote inside a value ends it, and the tools' schemas are not shown.
_NO_PYTHON_CALLS = (
    ". Published Llama templates write <|python_tag|> calls for built-in tools only, with unescaped strings for arguments, which "
    "no parser can read back: use chat.wire='llama_json', or a chat template that writes name.call(key=<JSON>, ...)"
)


def _tool(name: str, key: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    function = {"name": name, "description": "a < b & it's é", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [_tool("get_weather", "city"), _tool("get_time", "zone")]
WEATHER = ToolCall("get_weather", {"city": "Tromsø"}, "call_000a")
TIME = ToolCall("get_time", {"zone": "Europe/Oslo"}, "call_000b")
ODD = ToolCall("get_time", {"zone": "a \"b\", c='d'", "days": 2, "more": {"k": [1.5, None, True]}}, "call_000c")


def conversation(*, parallel: bool, thinking: bool) -> list[Any]:
    """Two questions, four assistant turns; the first calls two tools at once where `parallel`."""
    thought = {"reasoning_content": "The tool knows."} if thinking else {}
    first = [WEATHER, TIME] if parallel else [WEATHER]
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is Tromsø?"},
        {"role": "assistant", "content": "", "tool_calls": [call.message() for call in first], **thought},
        *({"role": "tool", "name": call.name, "tool_call_id": call.id, "content": '{"value": "4 °C"}'} for call in first),
        {"role": "assistant", "content": "4 °C.", **thought},
        {"role": "user", "content": "And the time?"},
        {"role": "assistant", "content": "", "tool_calls": [TIME.message()], **thought},
        {"role": "tool", "name": TIME.name, "tool_call_id": TIME.id, "content": "12:00"},
        {"role": "assistant", "content": "Noon.", **thought},
    ]


def check(template: Template) -> None:
    """Raises ValueError that names the template and the failing turn when

    - prompt + sampled + suffix ids are not the ids of the full rendering (unless `history="append"`);
    - the token that ends an assistant turn is not a stop token, so it would not be trained;
    - `parse` does not recognise a call that this template renders in this wire format;
    - content can produce a control id, or harmless content gets other ids than the tokenizer's own encoding.
    """
    messages = conversation(parallel=_parallel(template), thinking=bool(template.thinking))
    _check_parser(template, messages)
    _check_content(template, messages)
    if template.history == "template":
        _check_prefixes(template, messages)


def _parallel(template: Template) -> bool:
    try:
        template.ids(conversation(parallel=True, thinking=False), TOOLS)
    except ValueError:  # Llama 3: "only supports single tool-calls at once"
        return False
    return True


def _check_parser(template: Template, messages: Sequence[Any]) -> None:
    turn = next(i for i, message in enumerate(messages) if message.get("tool_calls"))
    hint = _NO_PYTHON_CALLS if template.wire == "llama_python" else ""
    odd: Any = {"role": "assistant", "content": "", "tool_calls": [ODD.message()]}
    for message in (messages[turn], odd):
        try:
            text = template.tokenizer.decode(template.assistant(messages[:turn], message)[:-1])
        except ValueError as error:
            raise ValueError(f"the chat template of {template.name} cannot write a call: {error}{hint}") from error
        expected = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
        parsed = parse(text, wire=template.wire)
        if parsed.errors or [(call.name, call.arguments) for call in parsed.calls] != expected:
            raise ValueError(
                f"chat.wire={template.wire!r} does not read the calls that the chat template of {template.name} writes: "
                f"{text!r}{hint}"
            )


def _check_content(template: Template, messages: Sequence[Any]) -> None:
    trusted = getattr(template.tokenizer, "encode_trusted", None)
    text = template.text(messages, TOOLS, generation_prompt=True)
    if trusted is not None and trusted(text) != template.ids(messages, TOOLS, generation_prompt=True):
        raise ValueError(f"the tokenizer of {template.name} gives other ids when text and control tokens are encoded apart")
    controls = set(template.tokenizer.control.values())
    written = {piece for piece in template.tokenizer.control if piece in text}
    hostile = "x" + "".join(sorted({*written, *ENVIRONMENT_MARKERS, CALL_OPEN, CALL_CLOSE, THINK_CLOSE})) + "y"
    safe = [i for i in template.ids(messages, TOOLS) if i in controls]
    for i, message in enumerate(messages):
        attacked = [*messages[:i], {**message, "content": hostile}, *messages[i + 1 :]]
        if message["content"] and [i for i in template.ids(attacked, TOOLS) if i in controls] != safe:
            raise ValueError(f"the chat template of {template.name} lets the content of message {i} write control tokens")


def _check_prefixes(template: Template, messages: Sequence[Any]) -> None:
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    stream = template.prompt(messages[: turns[0]], TOOLS)
    for number, (turn, following) in enumerate(zip(turns, [*turns[1:], len(messages)]), 1):
        stream += template.assistant(messages[:turn], messages[turn])
        new = messages[turn + 1 : following]
        if new:
            stream += template.suffix(messages[: turn + 1], new)
        full = template.ids(messages[:following], TOOLS, generation_prompt=bool(new))
        if full[: len(stream)] != stream or (new and len(full) != len(stream)):
            raise ValueError(
                f"the chat template of {template.name} rewrites history: after assistant turn {number} its rendering no longer "
                "begins with the ids that were sampled. Use a template that keeps its prefixes, or chat.history='append' to keep "
                "the sampled ids (then the policy sees a history the template would not write)"
            )
