"""What answers a vetted call: the backend protocol, and the two backends that need no engine.

`scripted` synthesises values from the response schema (no model); `openai` asks a server. A model of ours is in `local`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from slca.sgls import prompts, response, scripted
from slca.sgls.contract import Contract
from slca.sgls.endpoint import Endpoint, EndpointError
from slca.sgls.options import Options
from slca.tasks.values import Unsatisfiable
from slca.types import Observation, ToolCall


@dataclass(frozen=True)
class Request:
    """One vetted call and all that a backend may know about it.

    transcript: earlier (call, observation) pairs that the reply may depend on, None = stateless; state: the rollout's store, None unless
    state = kv; the answer is then {"response": body, "state_patch": {...}}. deadline: `time.monotonic()` value;
    examples: recorded bodies of this tool; fault: why the last reply was refused ("" = first try); seed: 31 bits that name the
    random draws, the same for all who are to get the same answer.
    """

    call: ToolCall
    contract: Contract
    group: str
    deadline: float
    transcript: tuple[tuple[ToolCall, Observation], ...] | None = None
    state: Mapping[str, Any] | None = None
    examples: tuple[str, ...] = ()
    fault: str = ""
    seed: int = 0

    @property
    def schema(self) -> dict[str, Any] | None:
        """JSON Schema of the whole reply, None where nothing is declared."""
        if self.state is None:
            return self.contract.response
        return response.with_patch(self.contract.response, self.patch_keys)

    @property
    def patch_keys(self) -> list[str]:
        """Store keys that this call may well change: those there are, and the entity it names."""
        named = scripted.entity_key(self.call)
        return sorted({*(self.state or {}), *([named] if named else [])})


class Reply(NamedTuple):
    """A backend's text and the tokens it cost."""

    text: str
    tokens: int = 0
    prompt_tokens: int = 0


class BackendError(Exception):
    """No reply, by our fault. kind: timeout, or any other name (counted under it)."""

    def __init__(self, kind: str):
        super().__init__(kind)
        self.kind = kind


class Backend(Protocol):
    """name: provenance source; identity: part of every cache key; deterministic: the same request, the same reply, at once."""

    name: str
    identity: str
    deterministic: bool

    def reply(self, request: Request) -> Reply:
        """Raises BackendError; called from many threads."""
        ...

    def counts(self) -> Mapping[str, float]: ...

    def close(self) -> None: ...


class Scripted:
    """Values made up from the response schema, seeded by the group and the canonical call. No model, no waiting."""

    name = "scripted"
    identity = "scripted"
    deterministic = True

    def reply(self, request: Request) -> Reply:
        known, earlier = (request.contract, request.call, request.group), request.transcript or ()
        try:
            if request.state is None:
                return Reply(response.dumps(scripted.answer(*known, earlier)))
            return Reply(response.dumps(scripted.answer_with_state(*known, request.state, earlier)))
        except Unsatisfiable:
            raise BackendError("unsatisfiable_schema") from None

    def counts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        return


class OpenAI:
    """A model behind an OpenAI-compatible server. paper: the published prompt, and no response format."""

    name = "openai"
    deterministic = False

    def __init__(self, endpoint: Endpoint, *, temperature: float, max_tokens: int, paper: bool = False):
        self.endpoint, self.temperature, self.max_tokens, self.paper = endpoint, temperature, max_tokens, paper
        self.identity = f"openai:{endpoint.model}:{'paper' if paper else prompts.VERSION}:t={temperature:g}:n={max_tokens}"

    def reply(self, request: Request) -> Reply:
        try:
            completion = self.endpoint.complete(
                messages(request, self.paper),
                temperature=self.temperature,
                max_tokens=self.max_tokens,
                schema=None if self.paper else request.schema,
                deadline=request.deadline,
            )
        except EndpointError as error:
            raise BackendError(error.kind) from error
        return Reply(completion.text, completion.completion_tokens, completion.prompt_tokens)

    def counts(self) -> Mapping[str, float]:
        return {f"endpoint/{name}": float(count) for name, count in self.endpoint.counts.items()}

    def close(self) -> None:
        self.endpoint.close()


def make(name: str, options: Options, generate: Callable[..., Any] | None) -> Backend:
    """The backend called `name`. Raises ValueError for an unknown name or where something it needs is missing."""
    if name == "scripted":
        return Scripted()
    if name == "openai":
        if not options.url:
            raise ValueError("sgls.url is empty: sgls.backend=openai needs an endpoint such as http://127.0.0.1:8001/v1")
        endpoint = Endpoint(
            options.url,
            options.model,
            key_env=options.key_env,
            timeout=options.timeout,
            retries=options.retries,
            concurrency=options.concurrency,
        )
        return OpenAI(endpoint, temperature=options.temperature, max_tokens=options.max_tokens, paper=options.paper)
    if name == "jax":
        from slca.sgls.local import Local  # imports this module

        if generate is None:
            raise ValueError("sgls.backend=jax needs generate=: the callable that samples from the model")
        return Local(
            generate, model=options.model, temperature=options.temperature, max_tokens=options.max_tokens, paper=options.paper
        )
    raise ValueError(f"sgls.backend={name!r}: one of scripted, jax, openai")


def messages(request: Request, paper: bool) -> list[dict[str, str]]:
    """The prompt of a model that plays the API server."""
    if paper:
        return prompts.paper(request.contract.function, request.call)
    return prompts.safe(
        request.contract.function,
        request.call,
        response=request.contract.response,
        examples=request.examples,
        transcript=request.transcript,
        state=request.state,
        fault=request.fault,
    )
