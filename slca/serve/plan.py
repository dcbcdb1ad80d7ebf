"""What a request asks of the engine: rows to sample, and how to read them. Pure, apart from a seed where the client gave none."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from slca.chat.markers import THINK_OPEN
from slca.chat.strict_json import sound
from slca.rollout.constraint import Constraint
from slca.serve.chat import Reading
from slca.serve.constrain import Grammars, Opening
from slca.serve.engine import Engine, Request
from slca.serve.errors import ApiError
from slca.serve.fewest import Fewest
from slca.serve.render import conversation
from slca.serve.schema import ChatRequest, CompletionRequest, NamedTool, Sampling

SEED_BITS = 31

Form = Callable[[], Constraint | None]  # a new grammar state for each choice


@dataclass(frozen=True)
class Limits:
    """max_tokens: of one answer (0: what the context leaves); choices: rows of one request; seconds: of one request."""

    max_tokens: int = 0
    choices: int = 64
    seconds: float = 600.0


@dataclass(frozen=True)
class Plan:
    """rows: one a choice, `each` of them a prompt. reading: None for raw completions. held_by: the field that holds the rows to a form."""

    rows: list[Request]
    stops: tuple[str, ...]
    reading: Reading | None = None
    held_by: str | None = None
    each: int = 1

    @property
    def prompt_tokens(self) -> int:
        """Each prompt counts once, however many choices it has."""
        return sum(len(row.prompt) for row in self.rows[:: self.each])


def chat_plan(
    asked: ChatRequest, data: Mapping[str, Any], engine: Engine, grammars: Grammars, fewest: Fewest, limits: Limits
) -> Plan:
    """data: the request's own JSON: tools are rendered as they came, key for key. Raises ApiError."""
    template = engine.template
    tools: list[Mapping[str, Any]] = [] if asked.tool_choice == "none" else list(data.get("tools") or ())
    messages = conversation(asked.messages)
    _short_enough(fewest.conversation(messages), engine, "messages")
    try:
        prompt = template.prompt(messages, tools or None)
    except ValueError as error:
        raise ApiError(400, f"messages: {error}"[:500], param="messages") from None
    before = THINK_OPEN if template.tokenizer.decode(prompt[-16:]).rstrip().endswith(THINK_OPEN) else ""
    reading = Reading(template.wire, tools=bool(tools), single=asked.parallel_tool_calls is False, before=before)
    opening, form = _form(asked, tools, grammars)
    if opening is not None:
        prompt = [*prompt, *_trusted(template, opening.before)]
        reading = replace(reading, before=opening.before, after=opening.after)
    most = asked.max_completion_tokens or asked.max_tokens
    held_by = "tool_choice" if opening is not None else "response_format" if _schema(asked) is not None else None
    rows = _rows(asked, [prompt], "messages", most, engine, limits, form, messages, tools)
    return Plan(rows, asked.stops, reading, held_by, asked.choices)


def completion_plan(asked: CompletionRequest, engine: Engine, fewest: Fewest, limits: Limits) -> Plan:
    """Text prompts are the client's own rendering: control strings in them are control tokens. Raises ApiError."""
    size = engine.template.tokenizer.size
    if len(asked.prompts) > limits.choices:
        raise ApiError(400, f"{len(asked.prompts)} prompts, at most {limits.choices} choices a request", param="prompt")
    for text in asked.prompts:
        if isinstance(text, str):
            _short_enough(fewest.raw(sound(text)), engine, "prompt")
    prompts = [_trusted(engine.template, prompt) if isinstance(prompt, str) else list(prompt) for prompt in asked.prompts]
    if any(i >= size for prompt in prompts for i in prompt):
        raise ApiError(400, f"prompt: ids are below {size}", param="prompt")
    rows = _rows(asked, prompts, "prompt", asked.max_tokens or 16, engine, limits, lambda: None)
    return Plan(rows, asked.stops, each=asked.choices)


def _short_enough(least: int, engine: Engine, param: str) -> None:
    """Refuse, before it is tokenized, a text that cannot fit."""
    most = min(engine.longest_prompt, engine.capacity - 1)
    if least > most:
        said = f"the prompt has at least {least} tokens; 1 to {most} fit this server"
        raise ApiError(400, said, param=param, code="context_length_exceeded")


def _rows(
    asked: Sampling, prompts: Sequence[Sequence[int]], param: str, most: int | None, engine: Engine, limits: Limits, form: Form,
    messages: Any = None, tools: Sequence[Mapping[str, Any]] = (),
) -> list[Request]:  # fmt: skip
    """param: the field that the prompts came from. A prompt that comes again counts its samples on, or its answers were all the same."""
    if len(prompts) * asked.choices > limits.choices:
        raise ApiError(400, f"{len(prompts) * asked.choices} choices, at most {limits.choices} a request", param="n")
    seed = secrets.randbits(SEED_BITS) if asked.seed is None else row_seed(asked.seed)
    temperature = 1.0 if asked.temperature is None else float(asked.temperature)
    deadline = time.monotonic() + limits.seconds
    samples: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(count)
    return [
        Request(
            prompt, _budget(len(prompt), param, most, engine, limits), temperature, seed, next(samples[prompt]), form(), deadline,
            messages, tools,
        )
        for prompt in map(tuple, prompts)
        for _ in range(asked.choices)
    ]  # fmt: skip


def row_seed(seed: int) -> int:
    """The sampler's seed: the client's own where it has 31 bits, else a hash of it."""
    if 0 <= seed < 1 << SEED_BITS:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest()) >> 1


def _budget(length: int, param: str, most: int | None, engine: Engine, limits: Limits) -> int:
    """Tokens to sample behind a prompt. What does not fit is refused, not cut."""
    room = engine.capacity - length
    if not length:
        raise ApiError(400, f"{param}: the prompt is empty; at least one token is needed", param=param)
    if length > engine.longest_prompt or room < 1:
        said = f"the prompt has {length} tokens; 1 to {min(engine.longest_prompt, engine.capacity - 1)} fit this server"
        raise ApiError(400, said, param=param, code="context_length_exceeded")
    allowed = min(room, limits.max_tokens or room)
    if most is not None and most > allowed:
        said = f"max_tokens={most}: the context of {engine.capacity} tokens and the server's limit leave {allowed} after {length} of prompt"
        raise ApiError(400, said, param="max_tokens", code="context_length_exceeded" if most > room else None)
    return allowed if most is None else most


def _form(asked: ChatRequest, tools: Sequence[Any], grammars: Grammars) -> tuple[Opening | None, Form]:
    """What holds each choice to a form (a grammar of its own), and the opening of a call that must be made."""
    named = asked.tool_choice.function.name if isinstance(asked.tool_choice, NamedTool) else None
    schema = _schema(asked)
    if named is not None or asked.tool_choice == "required":
        if schema is not None:
            raise ApiError(400, "response_format and a forced tool_choice exclude each other", param="response_format")
        offered = {i: tool for i, tool in enumerate(tools) if named in (None, tool["function"]["name"])}
        return grammars.call_opening(), partial(grammars.call, offered)
    return None, partial(grammars.held, schema, "response_format") if schema is not None else lambda: None


def _schema(asked: ChatRequest) -> Mapping[str, Any] | None:
    form = asked.response_format
    if form is None or form.type == "text":
        return None
    return {"type": "object"} if form.json_schema is None else form.json_schema.schema_


def _trusted(template: Any, text: str) -> list[int]:
    return getattr(template.tokenizer, "encode_trusted", template.tokenizer.encode)(sound(text))
