"""Response bodies and stream chunks of both kinds of completion."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slca.chat.tokenizer import Tokenizer
from slca.serve.chat import Answer
from slca.serve.plan import Plan
from slca.serve.text import UNKNOWN, Choice

LOWEST = -9999.0  # log-probs below it, infinity included, are no JSON numbers a client expects


def dumps(value: Any) -> bytes:
    """JSON as sent: UTF-8, never NaN; half surrogates of a client's text come back as `?`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


@dataclass
class Writer:
    """Turns choices into JSON. One a request; chat and raw completions differ in what a choice looks like.

    logprobs, ids: whether the client asked for them; usage: whether a stream ends with the counts.
    """

    plan: Plan
    model: str
    tokenizer: Tokenizer
    logprobs: bool = False
    ids: bool = False
    usage: bool = False
    sent: dict[int, Sent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chat = self.plan.reading is not None
        kind, prefix = ("chat.completion", "chatcmpl") if self.chat else ("text_completion", "cmpl")
        self.head = {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": self.model}

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The whole answer."""
        written = [self._choice(i, choice) for i, choice in enumerate(choices)]
        return {**self.head, "choices": written, "usage": self._usage(choices)}

    def chunk(self, index: int, choice: Choice) -> dict[str, Any] | None:
        """What is new and certain of a choice; None = nothing yet."""
        sent = self.sent.setdefault(index, Sent())
        if sent.over:
            return None
        sent.over = bool(choice.finish)
        delta = self._chat_delta(index, choice, sent) if self.chat else self._text_delta(choice, sent)
        count = len(choice.ids) if choice.finish else choice.read
        first, sent.tokens = sent.tokens, max(count, sent.tokens)
        finish = self.answer(choice).finish if self.chat and choice.finish else choice.finish or None
        fresh = count > first and (self.logprobs or self.ids)
        if not delta and not finish and not fresh:
            return None
        part: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
        part |= {"delta": delta} if self.chat else {"text": delta.get("text", "")}
        if self.logprobs:
            part["logprobs"] = self._logprobs(choice, first, count)
        if self.ids:
            part["token_ids"] = choice.ids[first:count]
            if not first:
                part["prompt_token_ids"] = list(self.plan.rows[index].prompt)
        return self._chunk([part])

    def counts(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The last chunk where usage was asked for."""
        return {**self._chunk([]), "usage": self._usage(choices)}

    def answer(self, choice: Choice) -> Answer:
        """A finished chat choice as its message. It is asked for several times; parsed once."""
        assert self.plan.reading is not None
        if choice.answer is None:
            choice.answer = self.plan.reading.answer(choice.text, choice.finish)
        return choice.answer

    def _chunk(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self.head, "object": kind, "choices": parts, **({"usage": None} if self.usage else {})}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        if self.chat:
            answer = self.answer(choice)
            written: dict[str, Any] = {"index": index, "message": self._message(index, answer), "finish_reason": answer.finish}
        else:
            written = {"index": index, "text": choice.text, "finish_reason": choice.finish}
        written["logprobs"] = self._logprobs(choice, 0, len(choice.ids)) if self.logprobs else None
        if self.ids:
            written |= {"token_ids": choice.ids, "prompt_token_ids": list(self.plan.rows[index].prompt)}
        return written

    def _message(self, index: int, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if answer.calls else "")}
        message["refusal"] = None
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = self._calls(index, answer)
        return message

    def _calls(self, index: int, answer: Answer) -> list[dict[str, Any]]:
        row = self.plan.rows[index]
        name = hashlib.blake2b(repr((row.prompt, row.seed, row.sample)).encode(), digest_size=9).hexdigest()
        calls = []
        for i, call in enumerate(answer.calls):
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
            calls.append({"id": f"call_{name}{i:02d}", "type": "function", "function": function})
        return calls

    def _chat_delta(self, index: int, choice: Choice, sent: Sent) -> dict[str, Any]:
        assert self.plan.reading is not None
        now = self.answer(choice) if choice.finish else self.plan.reading.certain(choice.settled())
        delta: dict[str, Any] = {}
        if new := sent.text(now.content):
            delta["content"] = new
        if new := sent.thought(now.reasoning):
            delta["reasoning_content"] = new
        if now.calls:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(self._calls(index, now))]
        if not sent.begun and (delta or choice.finish):
            sent.begun, delta = True, {"role": "assistant", "content": "", **delta}
        return delta

    def _text_delta(self, choice: Choice, sent: Sent) -> dict[str, Any]:
        new = sent.text(choice.settled())
        return {"text": new} if new else {}

    def _usage(self, choices: Iterable[Choice]) -> dict[str, int]:
        sampled = sum(len(choice.ids) for choice in choices)
        prompt = self.plan.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}

    def _logprobs(self, choice: Choice, first: int, last: int) -> dict[str, Any]:
        """Of the tokens that are text: the stop token is not."""
        last = min(last, len(choice.ids) - choice.silent)
        ids, values = choice.ids[first:last], [max(LOWEST, value) for value in choice.logprobs[first:last]]
        texts = [token_text(self.tokenizer, i) for i in ids]
        if self.chat:
            return {"content": [_entry(text, value) for text, value in zip(texts, values)], "refusal": None}
        offsets, at = [], len("".join(token_text(self.tokenizer, i) for i in choice.ids[:first]))
        for text in texts:
            offsets.append(at)
            at += len(text)
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}


@dataclass
class Sent:
    """What a stream has said of one choice."""

    begun: bool = False
    over: bool = False
    tokens: int = 0
    content: str = ""
    reasoning: str = ""

    def text(self, whole: str) -> str:
        new = _new(whole, self.content)
        self.content += new
        return new

    def thought(self, whole: str) -> str:
        new = _new(whole, self.reasoning)
        self.reasoning += new
        return new


def _new(whole: str, said: str) -> str:
    """What of `whole` was not said yet. What is not a continuation is said in full: nothing can be taken back."""
    return "" if said.startswith(whole) else whole.removeprefix(said)


def token_text(tokenizer: Tokenizer, i: int) -> str:
    """A token as it reads inside a text: decoders drop the space of a first token."""
    anchor = tokenizer.encode("x")
    return tokenizer.decode([*anchor, i])[len(tokenizer.decode(anchor)) :]


def _entry(text: str, logprob: float) -> Mapping[str, Any]:
    """bytes: null for a token that is a part of a character, whose bytes the tokenizer does not tell."""
    return {"token": text, "logprob": logprob, "bytes": None if UNKNOWN in text else list(text.encode()), "top_logprobs": []}
