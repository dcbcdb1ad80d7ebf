"""Messages to ids, once: the prompt, a demonstration turn, and what the environment adds after a sampled turn.

A row of training is prompt ids + sampled ids + suffix ids + sampled ids + ... Nothing in it is ever rendered or encoded a
second time, so the ids the policy saw, the ids it is trained on and their log-probs belong together. For a template that
keeps its prefixes the row equals the full rendering by `transformers` (contract 1); `check` proves that at start-up.

Suffixes come by difference: a short stand-in conversation that ends in an assistant turn is rendered with the new messages
behind it, and what follows that turn's stop token is the suffix. So the cost is that of the suffix, not of the conversation,
and no history that a policy may write can make the rendering fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slca.chat import budget, hermes
from slca.chat.markers import ENVIRONMENT_MARKERS
from slca.chat.parse import WIRES
from slca.chat.rendering import ControlStrings, plain_messages, render
from slca.chat.tokenizer import Tokenizer, from_transformers
from slca.tasks.schema import public_specs
from slca.types import Message

HISTORIES = ("template", "append")
ROLES = ("system", "user", "assistant", "tool")

# Stands for the sampled turn in the stand-in conversation. Plain ASCII: no template trims, escapes or splits it.
_SENTINEL = "slca-stand-in"
_PROBE_NAME = "probe_of_tools"
_PROBE = {
    "type": "function",
    "function": {"name": _PROBE_NAME, "description": "", "parameters": {"type": "object", "properties": {}}},
}

Tools = Sequence[Mapping[str, Any]] | None


class Template:
    """A chat template bound to its tokenizer. Pure: equal arguments give equal ids."""

    environment_markers = ENVIRONMENT_MARKERS

    def __init__(
        self,
        tokenizer: Tokenizer | Any,
        *,
        wire: str = "hermes",
        history: str = "template",
        thinking: bool = False,
        result_tokens: int = 512,
        date: str = "26 Jul 2024",
    ):
        """
        tokenizer: a `slca.chat.tokenizer.Tokenizer`, or a loaded `transformers` fast tokenizer.
        wire: how calls are written (`slca.chat.parse`).
        history: `template` = `check` refuses a template that rewrites earlier turns; `append` = the row keeps the sampled ids
            though the template would not.
        thinking: handed to templates that know `enable_thinking`.
        result_tokens: a longer tool result is cut inside its block, tokens.
        date: printed by Llama templates; fixed, since a row must not depend on the day.

        Raises ValueError on an unknown `wire` or `history` and on a budget too small for the marker.
        """
        if wire not in WIRES:
            raise ValueError(f"chat.wire={wire!r}: one of {', '.join(WIRES)}")
        if history not in HISTORIES:
            raise ValueError(f"chat.history={history!r}: one of {', '.join(HISTORIES)}")
        if result_tokens < budget.SMALLEST:
            raise ValueError(f"chat.tool_result_tokens={result_tokens}: at least {budget.SMALLEST}")
        self.tokenizer: Tokenizer = tokenizer if hasattr(tokenizer, "control") else from_transformers(tokenizer)
        self.wire, self.history = wire, history
        self.thinking, self.result_tokens = thinking, result_tokens
        self.stop_ids = self.tokenizer.stop_ids
        self._control = ControlStrings(self.tokenizer.control)
        self._variables = {**self.tokenizer.variables, "enable_thinking": thinking, "date_string": date}
        probe = render(self.tokenizer.chat_template, [{"role": "user", "content": ""}], [_PROBE], self._variables)
        self._native_tools = _PROBE_NAME in probe

    def prompt(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Ids of the conversation so far with its tools, generation prompt included.

        Raises ValueError for an unknown role, content that is no string, a tool result for a call that its turn does not
        have, or messages that the template refuses.
        """
        return self.ids(messages, tools, generation_prompt=True)

    def ids(self, messages: Sequence[Message], tools: Tools = None, *, generation_prompt: bool = False) -> list[int]:
        """Ids of the full rendering. Harmless content: those of `transformers`' `apply_chat_template`."""
        text, mark = self._text(self._prepared(messages), public_specs(tools or ()), generation_prompt)
        return self._encode(self._control.split(text), mark)

    def text(self, messages: Sequence[Message], tools: Tools = None, *, generation_prompt: bool = False) -> str:
        """The full rendering as text: what a reader, not a model, should be shown."""
        text, mark = self._text(self._prepared(messages), public_specs(tools or ()), generation_prompt)
        return text.replace(mark, "") if mark else text

    def suffix(self, messages: Sequence[Message], new: Sequence[Message]) -> list[int]:
        """Ids to append after the stop token of the last turn: tool results and/or a user message, then the generation prompt.

        messages: the history, ending in the sampled assistant message with its `tool_calls`; new: what the environment says.
        Tool results are put in call order by `tool_call_id`; a result without an id keeps its place.
        Raises ValueError when `messages` does not end in an assistant turn or a result names a call that is not there.
        """
        if not messages or messages[-1]["role"] != "assistant":
            raise ValueError("suffix: the history must end in an assistant message, the turn just sampled")
        last, *others = self._prepared([messages[-1], *new])
        calls = [
            {**call, "function": {"name": call["function"]["name"], "arguments": {_SENTINEL: _SENTINEL}}}
            for call in last.get("tool_calls", ())
        ]
        try:
            text, mark = self._text([*_stand_in(calls), *others], [], generation_prompt=True)
        except ValueError:  # Llama 3 templates render one call a turn; a policy may write more
            if len(calls) < 2:
                raise
            text, mark = self._text([*_stand_in(calls[:1]), *others], [], generation_prompt=True)
        pieces = self._control.split(text)
        return self._encode(pieces[self._stop(pieces) + 1 :], mark)

    def assistant(self, messages: Sequence[Message], message: Message) -> list[int]:
        """Ids of a demonstration turn as the policy would sample it after the generation prompt, stop token included.

        messages: the history (its content does not matter, only that `message` may follow). For a template that keeps its
        prefixes, prompt + assistant + suffix equals the full rendering. Raises ValueError when the template does not begin
        the turn with its own generation prompt or does not end it with a stop token.
        """
        user = {"role": "user", "content": _SENTINEL}
        mark, (turn,) = self._control.mark(*self._prepared([message]))
        prompt = self._render([user], [], generation_prompt=True)
        whole = self._render([user, turn], [], generation_prompt=False)
        if not whole.startswith(prompt):
            raise ValueError(f"the chat template of {self.name} does not begin an assistant turn with its generation prompt")
        pieces = self._control.split(whole[len(prompt) :])
        return self._encode(pieces[: self._stop(pieces, seen=True) + 1], mark)

    def check(self) -> None:
        """Prove at start-up what training relies on; see `slca.chat.checks`. Raises ValueError naming template and turn."""
        from slca.chat.checks import check

        check(self)

    @property
    def name(self) -> str:
        """What error messages call the template."""
        return repr(getattr(self.tokenizer, "name", type(self.tokenizer).__name__))

    def _prepared(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Absent fields dropped, results of each turn in call order and within the budget."""
        prepared = plain_messages(messages)
        calls: list[Mapping[str, Any]] = []
        start = 0
        for i, message in enumerate(prepared):
            message.setdefault("content", "")
            if message.get("role") not in ROLES:
                raise ValueError(f"messages[{i}]: role {message.get('role')!r} is not one of {', '.join(ROLES)}")
            if not isinstance(message["content"], str):
                raise ValueError(f"messages[{i}]: content is a string, not {type(message['content']).__name__}")
            if message["role"] == "tool":
                message["content"] = self._within_budget(message["content"])
                prepared[start : i + 1] = in_call_order(prepared[start : i + 1], calls)
            else:
                calls, start = message.get("tool_calls", []), i + 1
        return prepared

    def _within_budget(self, content: str) -> str:
        return budget.cut(content, self.result_tokens, self.tokenizer.encode, self.tokenizer.decode)

    def _text(self, messages: Sequence[Any], tools: Sequence[Any], generation_prompt: bool) -> tuple[str, str]:
        """(rendering with broken control strings in its content, the mark that breaks them)."""
        mark, (messages, tools) = self._control.mark(messages, tools)
        return self._render(messages, tools, generation_prompt), mark

    def _render(self, messages: Sequence[Any], tools: Sequence[Any], generation_prompt: bool) -> str:
        if not self._native_tools:
            messages, tools = hermes.plain(messages, tools), ()
        template = self.tokenizer.chat_template
        return render(template, messages, tools, self._variables, generation_prompt=generation_prompt)

    def _encode(self, pieces: Sequence[str], mark: str) -> list[int]:
        """Ids of `ControlStrings.split` pieces: control strings at odd places of the whole, text elsewhere."""
        ids: list[int] = []
        for piece in pieces:
            if piece in self._control.ids:
                ids.append(self._control.ids[piece])
            elif piece:
                ids += self.tokenizer.encode(piece.replace(mark, "") if mark else piece)
        return ids

    def _stop(self, pieces: Sequence[str], seen: bool = False) -> int:
        """Index of the stop token that closes the assistant turn: the first one behind the sentinel (`seen`: from the start)."""
        for i, piece in enumerate(pieces):
            seen = seen or _SENTINEL in piece
            if seen and self._control.ids.get(piece) in self.stop_ids:
                return i
        ends = [piece for piece in pieces if piece in self._control.ids]
        raise ValueError(
            f"the chat template of {self.name} does not end an assistant turn with a stop token (control tokens found: {ends}): "
            "the policy could never learn to stop"
        )


def _stand_in(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    turn: dict[str, Any] = {"role": "assistant", "content": _SENTINEL}
    return [{"role": "user", "content": "?"}, {**turn, "tool_calls": calls} if calls else turn]


def in_call_order(results: Sequence[dict[str, Any]], calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tool messages in the order of the calls they answer; those without a `tool_call_id` keep their places.

    Raises ValueError for an id that no call of the turn has: templates pair results with calls by position alone.
    """
    order = {call["id"]: i for i, call in enumerate(calls) if call.get("id")}
    if not order:
        return list(results)
    named = [result for result in results if result.get("tool_call_id")]
    for result in named:
        if result["tool_call_id"] not in order:
            raise ValueError(f"tool result for the unknown call id {result['tool_call_id']!r}; the turn's calls: {list(order)}")
    queue = iter(sorted(named, key=lambda result: order[result["tool_call_id"]]))
    return [next(queue) if result.get("tool_call_id") else result for result in results]
