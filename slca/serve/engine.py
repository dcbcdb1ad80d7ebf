"""What the server asks of an engine: take a request, hand out what is sampled piece by piece, stop when told to.

An engine deals in token ids only; texts, tools and HTTP are the server's. The slot scheduler is one engine
(`slca.serve.slots`); anything else with these few methods will do, such as an oracle that answers from ground truth:

    class Oracle:
        capacity, longest_prompt, constrained = 8192, 8000, False
        def __init__(self, template, answer): self.template, self.answer = template, answer
        def submit(self, request): return Ready(self.template.assistant(request.messages, self.answer(request.messages)))
        def health(self): return ""
        def stats(self): return {}
        def close(self): pass
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from slca.chat.template import Template
    from slca.rollout.constraint import Constraint
    from slca.types import Message


FAILED = "failed"  # how `health` begins when the engine is down for good


@dataclass(frozen=True)
class Request:
    """One row to sample.

    prompt: ids, at most the engine's `longest_prompt`; max_tokens: tokens to sample, the stop token included; temperature: 0 is
    greedy; seed, sample: name the row's random draws: equal ones (and equal prompts) give equal rows whatever else runs;
    constraint: what holds the text to a grammar, this row's own, None = any text; deadline: `time.monotonic()` value at which to
    give up.
    messages, tools: what the prompt was rendered from, for engines that do not sample (None: the client sent a raw prompt).
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    seed: int = 0
    sample: int = 0
    constraint: Constraint | None = None
    deadline: float = math.inf
    messages: Sequence[Message] | None = None
    tools: Sequence[Mapping[str, Any]] = ()


class Piece(NamedTuple):
    """The next sampled ids of a row. logprobs: nats, one an id. finish: "" = more follows | stop (the last id is a stop id) |
    length (budget used up or cache full)."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish: str = ""


class Stream(Protocol):
    """The pieces of one request, in order; the last one has a `finish`. Raises Failed, Late or DeadEnd instead of a piece."""

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    def cancel(self) -> None:
        """Nobody reads on: the row may be dropped. Any number of times, at any time, also after the last piece."""


class Engine(Protocol):
    """template: renders and tokenizes for this engine. capacity: tokens of prompt and answer together. constrained: whether
    requests may carry a constraint."""

    template: Template
    capacity: int
    longest_prompt: int
    constrained: bool

    def submit(self, request: Request) -> Stream:
        """Queue a request. Never blocks. Raises Full when too many wait, Failed when the engine is down, ValueError for a request
        that it cannot serve."""

    def health(self) -> str:
        """ "" = well; else one line that says why not (starting, or what failed)."""

    def stats(self) -> Mapping[str, float]:
        """Numbers for the metrics page, by name; names ending in `_total` only grow."""

    def close(self) -> None:
        """Stop; requests in flight end as Failed."""


class Full(Exception):
    """Too many requests wait. retry_after: seconds after which another try may do."""

    def __init__(self, retry_after: float):
        super().__init__("too many requests wait")
        self.retry_after = retry_after


class Failed(Exception):
    """The engine is down, through no fault of this request."""


class Late(Exception):
    """The request's deadline came before its last token."""


class DeadEnd(Exception):
    """The request's own grammar allows no further token."""


class Ready:
    """A stream whose ids are known beforehand: what an oracle returns. finish: "length" for ids that do not end in a stop id."""

    def __init__(self, ids: Sequence[int], logprobs: Sequence[float] | None = None, finish: str = "stop"):
        self._pieces = [Piece(list(ids), [0.0] * len(ids) if logprobs is None else list(logprobs), finish)]

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        if not self._pieces:
            raise StopAsyncIteration
        return self._pieces.pop()

    def cancel(self) -> None:
        self._pieces.clear()
