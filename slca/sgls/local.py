"""The backend that asks a model of ours: calls that arrive together are sampled together.

`generate(prompts, grammars, max_tokens, temperature, seeds)` is handed in by the caller (`slca.simulate.Frozen`: the same
scheduler and sampler as the policy's). prompts are chat messages; grammars llguidance texts or None; seeds name the random
draws, so that a reply depends on its prompt and seed alone. It returns one `Generated` a prompt, or a BackendError where a
prompt has no reply.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from slca.sgls import grammar, prompts, response
from slca.sgls.backends import BackendError, Reply, Request, messages

GATHER_SECONDS = 0.005  # how long the first call of a batch waits for company
MAX_BATCH = 64  # calls sampled together
CLOSE_SECONDS = 10.0  # that `close` waits for the model's thread

# A body where nothing is declared: a grammar needs something finite.
UNDECLARED = {
    "type": "object",
    "properties": {"status": {"type": "string"}, "result": {"type": "string"}},
    "required": ["result"],
}


Prompt = tuple[list[dict[str, str]], str | None]  # chat messages and the grammar of the reply


class Generated(NamedTuple):
    """A sampled text, without its stop token, and the tokens it took."""

    text: str
    tokens: int = 0
    prompt_tokens: int = 0


Waiting = tuple[Request, Future[Generated]]


class Generate(Protocol):
    def __call__(
        self, prompts: Sequence[list[dict[str, str]]], grammars: Sequence[str | None], max_tokens: int, temperature: float,
        seeds: Sequence[int],
    ) -> Sequence[Generated | BackendError]: ...  # fmt: skip


class Local:
    """A model behind a `generate` callable, held to the response schema by a grammar where llguidance is installed.

    model: its name, part of every cache key; paper: the published prompt and no grammar. Attributes of `generate` are used
    where it has them: counts (counters by name) and close().
    """

    name = "jax"
    deterministic = False

    def __init__(self, generate: Generate, *, model: str, temperature: float, max_tokens: int, paper: bool = False):
        self.temperature, self.max_tokens, self.paper = temperature, max_tokens, paper
        self.identity = f"jax:{model}:{'paper' if paper else prompts.VERSION}:t={temperature:g}:n={max_tokens}"
        self.counted: Counter[str] = Counter()
        self._generate = generate
        self._constrained = not paper and grammar.available()
        self._waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def reply(self, request: Request) -> Reply:
        future: Future[Generated] = Future()
        with self._lock:
            if self._closed:
                raise BackendError("closed")
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="slca-simulator", daemon=True)
                self._thread.start()
            self._waiting.put((request, future))  # under the lock: nothing comes behind the end that `close` puts there
        try:
            generated = future.result(max(0.0, request.deadline - time.monotonic()))
        except TimeoutError:
            future.cancel()
            raise BackendError("timeout") from None
        return Reply(generated.text, generated.tokens, generated.prompt_tokens)

    def counts(self) -> Mapping[str, float]:
        counted = {**self.counted, **getattr(self._generate, "counts", {})}
        return {f"local/{name}": float(count) for name, count in counted.items()}

    def close(self) -> None:
        """Let the model go; replies still being sampled fail, later calls are refused."""
        with self._lock:
            self._closed = True
            self._waiting.put(None)
        getattr(self._generate, "close", lambda: None)()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _serve(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, stopping = [first], False
            until = time.monotonic() + GATHER_SECONDS
            while len(batch) < MAX_BATCH and not stopping:
                try:
                    item = self._waiting.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
                stopping = item is None
                batch += [item] if item is not None else []
            if live := [(request, future) for request, future in batch if future.set_running_or_notify_cancel()]:
                self._sample(live)
            if stopping:
                return

    def _sample(self, batch: list[Waiting]) -> None:
        """Answer for every call of the batch. Nothing gets out: this thread is the only one there is, and the libraries behind
        grammars and devices throw what is no Exception."""
        try:
            asked = [(one, prompt) for one in batch if (prompt := self._prompt(*one)) is not None]
            if asked:
                self._answer([one for one, _ in asked], [prompt for _, prompt in asked])
        except BaseException as error:  # the model's engine failed; its callers, not the run, hear of it
            for _, future in batch:
                if not future.done():
                    future.set_exception(BackendError(f"generate/{type(error).__name__}"))

    def _prompt(self, request: Request, future: Future[Generated]) -> Prompt | None:
        """What the model is asked; None where that fails, which this call alone hears of, not its neighbours."""
        try:
            return messages(request, self.paper), self._grammar(request)
        except BaseException as error:
            future.set_exception(BackendError(f"prompt/{type(error).__name__}"))
            return None

    def _answer(self, batch: list[Waiting], prompts: list[Prompt]) -> None:
        self.counted["batches"] += 1
        seeds = [request.seed for request, _ in batch]
        asked, grammars = [words for words, _ in prompts], [text for _, text in prompts]
        replies = self._generate(asked, grammars, self.max_tokens, self.temperature, seeds)
        if len(replies) != len(batch):
            raise ValueError(f"generate returned {len(replies)} replies for {len(batch)} prompts")
        for (_, future), reply in zip(batch, replies):
            if isinstance(reply, BackendError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def _grammar(self, request: Request) -> str | None:
        if not self._constrained:
            return None
        try:
            return grammar.compile(_finite_schema(request), self.max_tokens)
        except grammar.NoGrammar:  # the check of the reply is still there
            self.counted["unconstrained"] += 1
            return None


def _finite_schema(request: Request) -> dict[str, Any]:
    """The reply's schema; where nothing is declared, the keys of a recorded body or a small generic one."""
    if request.contract.response is not None:
        return request.schema or {}
    keys = sorted(response.top_keys(request.examples[0])) if request.examples else []
    body = {"type": "object", "properties": {key: {} for key in keys}, "required": keys} if keys else UNDECLARED
    return body if request.state is None else response.with_patch(body, request.patch_keys)
