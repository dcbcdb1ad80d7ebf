"""SGLS, the schema-guided LLM simulator: any schema in; believable, checked, reproducible tool results out.

Order of a call: known tool -> required and types (deterministic, hint-free) -> recorded replay -> seeded fault -> cache ->
backend -> response check with k regenerations -> else `sim_failed`, which leaves the rollout unscored. A call's arguments are
data, never instructions, and no status is read from a model's words. Paper: arXiv 2609.29050, section on SGLS.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from slca.sgls import backends, faults, prompts, response, scripted, validation
from slca.sgls.cache import Cache
from slca.sgls.contract import contract, writes
from slca.sgls.meter import Meter
from slca.sgls.options import Options
from slca.sgls.store import Row, Store
from slca.tasks.schema import ToolSet, call_hash, canonical
from slca.types import Context, Observation, ToolCall

FAILED_TEXT = "error: unavailable: the tool gave no result"  # the same for every cause: ours, and not the policy's business
REPLAY = "replay:"  # key prefix of recorded results in a store
EXAMPLES = 2  # recorded bodies of a tool shown to a model
MAX_STATE = 256 * 2**10  # characters of a rollout's key/value store


class Simulator:
    """Simulates tool calls; thread-safe.

    backend: scripted | jax | openai, or an object with the methods of `backends.Backend`; generate: the callable of `jax` (see
    `slca.sgls.local`); replays: recorded (call, body text) pairs; options: the fields of `Options`, which are those of section
    `sgls` in `configs/default.py`. Raises ValueError on options that make no sense, TypeError on unknown ones, sqlite3.Error
    where the store cannot be opened.
    """

    def __init__(
        self,
        backend: str | backends.Backend = "scripted",
        *,
        generate: Callable[..., Any] | None = None,
        replays: Iterable[tuple[ToolCall, str]] = (),
        **options: Any,
    ):
        self.options = Options(**options).effective()
        self._backend = backends.make(backend, self.options, generate) if isinstance(backend, str) else backend
        self._manner = _manner(self.options)
        self._store = _opened(self.options.store) if self.options.store else None
        self._cache = None if self.options.cache == "none" else Cache(self._store)
        self._meter = Meter()
        self._totals: dict[str, float] = {}  # counts of backend and cache at the last reset
        self._recorded: dict[str, Row] = {}
        self._examples: dict[str, list[Row]] = {}  # recordings by tool: those of the least keys, whatever order they came in
        self._keys: dict[str, frozenset[str]] = {}  # keys that all recorded bodies of a tool have
        if not self.options.paper:
            self._recall(replays)

    @classmethod
    def from_config(cls, section: Mapping[str, Any], **extra: Any) -> Simulator:
        """From the section `sgls` of a config; `extra`: arguments that no config holds (generate, replays), or that win over it."""
        return cls(**(dict(section.items()) | extra))

    @property
    def deterministic(self) -> bool:
        """The same call in the same context gets the same text, at once."""
        return self._backend.deterministic

    def simulate(self, call: ToolCall, toolset: ToolSet, context: Context | None = None) -> Observation:
        """The tool's answer to `call` in a rollout. Never raises: whatever goes wrong here is `sim_failed` or `timeout`.

        In state `kv` the answer's patch is applied to `context.state`, so calls of one rollout must come one by one; who gives a
        call up before it returns hands it a context of its own.
        """
        begun = time.monotonic()
        try:
            observation = self._simulate(call, toolset, context or Context(), begun + self.options.timeout)
        except Exception as error:  # one broken call must not end a run
            observation = _failed(type(error).__name__)
        seconds = time.monotonic() - begun
        cost = {**observation.cost, "seconds": seconds}
        if observation.status in ("ok", "tool_error") and (price := contract(toolset.tools[call.name]).cost):
            cost["declared"] = price  # also where the answer was cached or recorded: the call was made
        observation = replace(observation, cost=cost)
        self._meter.observe(observation, seconds)
        return observation

    def record(self, call: ToolCall, text: str) -> None:
        """Replay `text` for every later call equal to `call` (in the store as well, where there is one)."""
        row = Row(REPLAY + call_hash(call), call.name, canonical(call), text, provenance={"source": "replay"})
        if self._store is not None:
            row = self._store.put(row)
        if row.key not in self._recorded:
            self._learn(row)

    def metrics(self, reset: bool = False) -> dict[str, float]:
        """Counts by name since the last reset, rates in 0..1, latency in seconds under `time/`; see `Meter.values`.

        reset: a new period begins. What a deterministic backend said is then forgotten as well, so that the numbers of a period
        (a training step) depend on nothing before it, and a resumed run counts as an uninterrupted one does.
        """
        totals = dict(self._backend.counts())
        if self._cache is not None:
            totals |= {f"cache/{name}": float(count) for name, count in self._cache.counts.items()}
        values = self._meter.values() | {name: count - self._totals.get(name, 0.0) for name, count in totals.items()}
        if reset:
            self._meter.reset()
            self._totals = totals
            if self._backend.deterministic:
                self.forget()
        return values

    def forget(self) -> None:
        """Ask afresh from now on: drop the answers kept in memory (not those of the store, nor recorded ones)."""
        if self._cache is not None:
            self._cache.forget()

    def close(self) -> None:
        """Let go of threads, connections and files."""
        self._backend.close()
        if self._store is not None:
            self._store.close()

    def _simulate(self, call: ToolCall, toolset: ToolSet, context: Context, deadline: float) -> Observation:
        validate = validation.required if self.options.validate == "required" else validation.jsonschema
        if (refused := validate(call, toolset)) is not None:
            return refused
        identity = call_hash(call)
        world = self._world(context)
        if not world and (row := self._recorded.get(REPLAY + identity)) is not None:
            return Observation(self._cut_text(row.text), provenance={"source": "replay"})
        group = "" if self.options.cache == "global" else context.group  # one world for all, or one a group
        # Drawn before the cache is read: a stored answer must not hide a fault that this group is to meet.
        fault = self._fault(call, identity, context)
        if fault == "stale":
            group, world, context = f"{group}\0stale", "stale", replace(context, transcript=[], state={})
        elif fault is not None:
            return faults.observation(fault, {})
        request = self._request(call, toolset, context, group, deadline)
        observation = self._answer(request, identity, world)
        if fault is not None:
            return replace(observation, provenance={**observation.provenance, "fault": fault})
        if patch := observation.provenance.get("state_patch"):
            context.state.update(patch)
        return observation

    def _recall(self, replays: Iterable[tuple[ToolCall, str]]) -> None:
        for row in self._store.rows(REPLAY) if self._store is not None else ():
            self._learn(row)
        for call, text in replays:
            self.record(call, text)

    def _learn(self, row: Row) -> None:
        self._recorded[row.key] = row
        examples, keys = self._examples.get(row.tool, []), response.top_keys(row.text)
        self._examples[row.tool] = sorted([*examples, row], key=lambda one: one.key)[:EXAMPLES]
        self._keys[row.tool] = self._keys.get(row.tool, keys) & keys

    def _fault(self, call: ToolCall, identity: str, context: Context) -> str | None:
        if self.options.fault_rate <= 0:
            return None
        attempt = sum(earlier.name == call.name and call_hash(earlier) == identity for earlier, _ in context.transcript)
        kind = faults.draw(self.options.fault_rate, self.options.fault_kinds, context.group, identity, attempt)
        return None if kind == "stale" and writes(call.name) else kind  # only a read can come from an older world

    def _world(self, context: Context) -> str:
        """Digest of what earlier calls of this rollout changed; "" = nothing. Reads are no part of it, so that rollouts of a
        group that read different things still see the same world."""
        if self.options.state == "kv" and context.state:
            return _digest(json.dumps(context.state, ensure_ascii=False, sort_keys=True))
        if self.options.state == "transcript" and (written := _written(context)):
            return _digest(*_footprint(written))
        return ""

    def _request(self, call: ToolCall, toolset: ToolSet, context: Context, group: str, deadline: float) -> backends.Request:
        transcript = None
        if self._backend.deterministic and not self.options.paper:
            transcript = scripted.linked(call, context.transcript)  # all that its reply depends on, and part of the key
        elif self.options.state == "transcript":
            transcript = tuple(context.transcript)
        return backends.Request(
            call,
            contract(toolset.tools[call.name]),
            group,
            deadline,
            transcript=transcript,
            state=dict(context.state) if self.options.state == "kv" else None,
            examples=() if self.options.paper else tuple(row.text for row in self._examples.get(call.name, ())),
            seed=_seed(context, group, alone=self.options.cache == "none"),
        )

    def _answer(self, request: backends.Request, identity: str, world: str) -> Observation:
        if self._cache is None:
            return self._ask(request)
        links = _footprint(request.transcript or ()) if self._backend.deterministic else ()
        shown = (_digest("examples", *request.examples),) if request.examples else ()
        key = _digest(
            self._backend.identity, self._manner, request.contract.digest, request.group, world, identity, *links, *shown
        )
        try:
            wait = max(0.0, request.deadline - time.monotonic())
            observation, known = self._cache.once(key, request.call, lambda: self._ask(request), wait)
        except TimeoutError:
            return _failed("timeout", status="timeout")
        if not known:
            return observation
        origin = observation.provenance.get("source", "")
        return replace(observation, cost={}, provenance={**observation.provenance, "source": "cache", "origin": origin})

    def _ask(self, request: backends.Request) -> Observation:
        """Ask the backend until a reply passes the check, at most 1 + regenerations times. Never raises BackendError."""
        cost = {"replies": 0, "tokens": 0, "prompt_tokens": 0, "regenerations": 0, "invalid": 0}
        while True:
            try:
                reply = self._backend.reply(request)
            except backends.BackendError as error:
                return _failed(error.kind, cost, "timeout" if error.kind == "timeout" else "sim_failed")
            cost["replies"] += 1
            cost["tokens"] += reply.tokens
            cost["prompt_tokens"] += reply.prompt_tokens
            try:
                return replace(self._accept(reply.text, request), cost=cost)
            except response.InvalidResponse as error:
                cost["invalid"] += 1
                if cost["invalid"] > self.options.regenerations:
                    return _failed(f"invalid_response/{error.kind}", cost)
                if time.monotonic() >= request.deadline:
                    return _failed("timeout", cost, "timeout")
                cost["regenerations"] += 1
                request = replace(request, fault=str(error))

    def _accept(self, text: str, request: backends.Request) -> Observation:
        """The observation of a reply. Raises InvalidResponse."""
        provenance: dict[str, Any] = {"source": self._backend.name, "version": self._backend.identity}
        if not self.options.response_check:
            text = prompts.clean(text) if self.options.paper else prompts.body(text)
            return Observation(response.cut_middle(text, self.options.max_chars), provenance=provenance)
        value = response.loads(prompts.body(text))
        if request.state is not None:
            value, patch = response.split_patch(value)
            if patch and not response.api_error(value):
                if len(response.dumps({**request.state, **patch})) > MAX_STATE:
                    raise response.InvalidResponse("state_patch", "the store would become too large")
                provenance["state_patch"] = patch
        keys = self._keys.get(request.call.name, frozenset()) if request.contract.response is None else frozenset()
        response.check(value, request.contract.violation, keys)
        status = "tool_error" if response.api_error(value) else "ok"
        return Observation(response.cut_json(value, self.options.max_chars), status, provenance=provenance)

    def _cut_text(self, text: str) -> str:
        """A recorded body at most `max_chars` long; what is JSON stays JSON."""
        if len(text) <= self.options.max_chars:
            return text
        try:
            return response.cut_json(response.loads(text), self.options.max_chars)
        except response.InvalidResponse:
            return response.cut_middle(text, self.options.max_chars)


def _opened(path: str) -> Store:
    try:
        return Store(path)
    except sqlite3.Error as error:
        raise ValueError(f"sgls.store={path}: {error}; name a SQLite file (made if absent) in a folder that exists") from error


def _manner(options: Options) -> str:
    """The options, apart from the backend's, that an answer depends on: part of every cache key, as a store outlives a run."""
    return f"state={options.state} check={options.response_check} chars={options.max_chars}"


def _seed(context: Context, group: str, alone: bool) -> int:
    """Names a reply's random draws. alone: without a cache nobody shares answers, so each call of each rollout draws afresh, in
    every step."""
    own = (context.step, context.copy, context.sample, len(context.transcript), context.call) if alone else ()
    return int(_digest("draws", str(context.seed), group, *map(str, own))[:8], 16) >> 1


def _written(context: Context) -> list[tuple[ToolCall, Observation]]:
    return [(call, answer) for call, answer in context.transcript if answer.status == "ok" and writes(call.name)]


def _footprint(pairs: Iterable[tuple[ToolCall, Observation]]) -> list[str]:
    return [part for call, answer in pairs for part in (call_hash(call), answer.text)]


def _failed(kind: str, cost: Mapping[str, float] | None = None, status: str = "sim_failed") -> Observation:
    return Observation(FAILED_TEXT, status, cost or {}, {"source": "simulator", "error": kind})


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
