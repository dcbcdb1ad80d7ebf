"""Who answers in an evaluation: a policy of ours over the batch sampler, or an OpenAI-compatible endpoint. Both are functions
of many requests at once.

A request holds the whole conversation. It is rendered afresh at every step, as a chat server does; training appends to the
sampled ids instead, so where a template rewrites old turns the two differ.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slca.types import Message, ToolCall

if TYPE_CHECKING:
    from slca.restore import Policy

SUFFIX_BUCKET = 16  # the sampler wants one; no suffix is ever appended here


@dataclass(frozen=True)
class Request:
    """One assistant turn that is wanted. key names the conversation; turn and step its place there (user turn, call round)."""

    key: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    turn: int = 0
    step: int = 0


@dataclass(frozen=True)
class Reply:
    """text: the sampled turn as written, without the stop token. calls: from a server that parses them itself, else None.
    skipped: the prompt does not fit the context, or there is none for these messages; nothing was asked. truncated: the turn reached its token budget."""

    text: str = ""
    calls: list[ToolCall] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    skipped: bool = False
    truncated: bool = False


Chat = Callable[[Sequence[Request]], list[Reply]]


@dataclass
class Sampled:
    """Replies of a policy. context: prompt and reply together, tokens; seed: of the draws at a temperature above 0.

    One sampler for all calls, so nothing is compiled twice. A row draws by (seed, conversation, turn, step) alone. A conversation that
    the chat template refuses (some take one call a turn, and the model made two) is skipped, and the first refusal is printed.
    """

    policy: Policy
    slots: int = 16
    context: int = 4096
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    refused: int = field(default=0, init=False)
    _sampler: Any = field(default=None, repr=False)
    _weights: Any = field(default=None, repr=False)

    def __call__(self, requests: Sequence[Request]) -> list[Reply]:
        from slca.rollout.scheduler import Scheduler
        from slca.tasks.schema import public_specs

        template = self.policy.template
        if self._sampler is None:
            self._sampler = self._make()
            self._weights = self._sampler.prepare(self.policy.params)
        scheduler = Scheduler(
            self._sampler, self._weights, seed=self.seed, step=0, temperature=self.temperature, stop_ids=template.stop_ids
        )
        replies = [Reply(skipped=True)] * len(requests)
        longest = self._sampler.prompt_buckets[-1]
        for index, request in enumerate(requests):
            try:
                prompt = template.prompt(request.messages, public_specs(request.tools))
            except ValueError as error:
                if not self.refused:
                    print(f"a conversation is skipped: {error}", file=sys.stderr)
                self.refused += 1
                continue
            budget = min(self.max_tokens, self._sampler.capacity - len(prompt))
            if len(prompt) > longest or budget < 1:
                replies[index] = Reply(skipped=True, prompt_tokens=len(prompt))
                continue
            key = zlib.crc32(f"{request.key}#{request.turn}#{request.step}".encode()) & 0x7FFFFFFF
            scheduler.submit(prompt, prompt_key=key, sample=0, budget=budget, tag=index)
        while scheduler.busy:
            for row in scheduler.step():
                replies[row.tag] = self._reply(row)
                scheduler.cancel(row)
        return replies

    def _reply(self, row: Any) -> Reply:
        stopped = row.tokens[-1] in self.policy.template.stop_ids
        text = self.policy.tokenizer.decode(row.tokens[:-1] if stopped else row.tokens)
        return Reply(text, None, len(row.prompt), len(row.tokens), truncated=not stopped)

    def _make(self) -> Any:
        from slca.rollout.sampler import Sampler

        context = min(self.context, self.policy.model.max_length)
        if context <= self.max_tokens:
            raise ValueError(
                f"--context={context} leaves no room for a prompt beside --max-tokens={self.max_tokens} "
                f"(the model sees {self.policy.model.max_length} tokens at most)"
            )
        # A prompt is padded to its bucket: eighths of the context waste little and stay a short list of programs.
        buckets = tuple(sorted({context * n // 8 for n in (1, 2, 4, 8)}))
        return Sampler(
            self.policy.model, slots=self.slots, cache_length=context, prompt_buckets=buckets, suffix_buckets=(SUFFIX_BUCKET,),
            cache_dtype="bfloat16" if self.policy.model.dtype == "bfloat16" else "float32",
        )  # fmt: skip


class Endpoint:
    """Replies of an OpenAI-compatible server, which renders and parses itself. key_env names the variable that holds its key.

    A request that the server refuses (HTTP 400, 413, 422: most often a prompt beyond its context) is skipped, and the first refusal is printed. Anything else
    raises `slca.sgls.endpoint.EndpointError` after its retries: a score over the requests that happened to get through would be
    no score.
    """

    def __init__(
        self, url: str, model: str, *, key_env: str = "", max_tokens: int = 512, temperature: float = 0.0, concurrency: int = 16
    ):
        from slca.sgls.endpoint import Endpoint as Client

        self.client = Client(url, model, key_env=key_env, concurrency=concurrency)
        self.max_tokens, self.temperature, self.concurrency = max_tokens, temperature, concurrency
        self.refused = 0

    def __call__(self, requests: Sequence[Request]) -> list[Reply]:
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(self._one, requests))

    def _one(self, request: Request) -> Reply:
        from slca.sgls.endpoint import EndpointError
        from slca.tasks.schema import public_specs

        messages, tools = [_on_the_wire(message) for message in request.messages], public_specs(request.tools)
        try:
            made = self.client.complete(messages, temperature=self.temperature, max_tokens=self.max_tokens, tools=tools)
        except EndpointError as error:
            if error.kind in ("http_400", "http_413", "http_422"):
                if not self.refused:
                    print(f"the endpoint refuses a request, which is skipped: {error}", file=sys.stderr)
                self.refused += 1
                return Reply(skipped=True)
            raise
        return Reply(
            made.text, _calls(made.calls), made.prompt_tokens, made.completion_tokens, truncated=made.finish == "length"
        )


def _on_the_wire(message: Message) -> dict[str, Any]:
    """Arguments of calls are JSON text there."""
    out: dict[str, Any] = dict(message)
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}} for call in calls
        ]
    return out


def _calls(calls: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """The usable calls of a reply; one without a name or an object of arguments is none."""
    out = []
    for call in calls:
        function = call.get("function") or {}
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except (TypeError, ValueError):
            continue
        if isinstance(function.get("name"), str) and isinstance(arguments, dict):
            out.append(ToolCall(function["name"], arguments))
    return out
