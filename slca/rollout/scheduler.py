"""Continuous batching: more rows than cache slots, over the sampler's slot state.

    submit ──► queue ──► slot: prefill once a distinct prompt, insert a row ──► decode rounds ──► turn over: handed back
                           ▲                                                                        │
                           └── freed by `cancel`            `append` a suffix: decodes again ◄──────┘

A row whose turn is over keeps its slot (and its cache) while its tools run; other rows decode meanwhile. What a row samples
depends on its key alone (seed, step, prompt, sample, turn, position), so no scheduling decision changes a result (contract 11).
The same scheduler serves rollouts, a server and a simulator that runs a local model.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from slca.rollout.constraint import Constraint, fitted, words
from slca.rollout.places import Places
from slca.rollout.sampler import RUNNING, STOP, Sampler, row_keys

# A round ends early when this share of the decoding rows has stopped: waking costs an append, waiting costs idle slots. Measured
# (bench.rollout_engine wake): refilled rows like 1/8 (3 % faster than 1/4), episodes of many turns 1/4 (15 % faster than 1/8).
WAKE_SHARE = 0.25

DEAD_END = 4  # reason of a row whose constraint allows no token at all


@dataclass(eq=False)
class Row:
    """One sequence. seed, prompt_key and sample name it to the random draws, `tag` to the caller; tokens, logprob and reason
    (of the sampler's, or DEAD_END) are those of its current turn; length is what the cache holds of it (the pending token
    included) before that turn."""

    prompt: tuple[int, ...]
    prompt_key: int
    sample: int
    budget: int
    tag: Any = None
    temperature: float = 1.0
    seed: int = 0
    constraint: Constraint | None = None
    turn: int = 0
    slot: int = -1
    length: int = 0
    decoding: bool = True
    reason: int = RUNNING
    suffix: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprob: list[float] = field(default_factory=list)

    def take(self, tokens: np.ndarray, logprob: np.ndarray, count: int, reason: int) -> None:
        """What one round sampled: the first `count` entries."""
        self.tokens += tokens[:count].tolist()
        self.logprob += logprob[:count].tolist()
        self.decoding, self.reason = reason == RUNNING, reason
        if self.constraint is not None:
            for token in self.tokens[len(self.tokens) - count :]:
                self.constraint.advance(token)
            self.over_when_stopped()

    def over_when_stopped(self) -> bool:
        """End the turn where its constraint is finished; True if it is."""
        if self.constraint is None or not self.constraint.stopped():
            return False
        self.decoding, self.reason = False, STOP
        return True


class Scheduler:
    """Rows over the slots of `sampler`. One weight version: make a new scheduler after an update, its caches go with it.

    stop_ids end a turn; seed and temperature (0 is greedy) are what a row has unless it brings its own. `stats` counts tokens
    (prefilled, appended, decoded; reused: what prefilling each row at each turn would have computed again), rows, rounds,
    compactions (rounds that decoded few rows, gathered from their slots) and slot_steps (tokens if all slots had decoded).
    """

    def __init__(
        self, sampler: Sampler, params: Any, *, seed: int, step: int, temperature: float, stop_ids: Sequence[int]
    ) -> None:
        self.sampler, self.weights = sampler, sampler.prepare(params)
        self.seed, self.rl_step, self.temperature, self.stop_ids = seed, step, temperature, tuple(stop_ids)
        self.state = sampler.init()
        self.stats: Counter[str] = Counter()
        self._queue: deque[Row] = deque()
        self._places = Places(sampler) if sampler.places else None  # the queue of a sampler that shares prompts
        self._slots: list[Row | None] = [None] * sampler.slots
        self._prompts: dict[tuple[int, ...], tuple[Any, int]] = {}  # prompt -> its batch of caches and its row there

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do: a queued row that can get a slot, or a row that decodes."""
        if any(row is not None and row.decoding for row in self._slots):
            return True
        return bool(self._queue and None in self._slots) if self._places is None else self._places.open(self._free())

    def submit(
        self, prompt: Sequence[int], *, prompt_key: int, sample: int, budget: int, tag: Any = None,
        temperature: float | None = None, seed: int | None = None, constraint: Constraint | None = None,
    ) -> Row:  # fmt: skip
        """Queue a new row; `step` hands it back when its first turn is over. Rows of one prompt share its prefill.

        seed: 32 bits. constraint holds the first turn; its end is the turn's end, no stop token is spent on it. While a row with
        one decodes, rounds are one token long, for every row. Raises ValueError where the sampler has no program for masks.
        """
        self._check(constraint)
        row = Row(
            tuple(prompt), prompt_key, sample, budget, tag, constraint=constraint, length=len(prompt),
            temperature=self.temperature if temperature is None else temperature, seed=self.seed if seed is None else seed,
        )  # fmt: skip
        if self._places is None:
            self._queue.append(row)
        else:
            self._places.add(row.prompt, row)
        return row

    def append(self, row: Row, suffix: Sequence[int], budget: int, constraint: Constraint | None = None) -> None:
        """Give a row whose turn is over its next environment tokens (at least one) and let it sample another turn."""
        self._check(constraint)
        self.stats["tokens_reused"] += row.length + len(row.tokens)
        row.length += len(row.tokens) + len(suffix)
        row.suffix, row.budget, row.turn, row.constraint = list(suffix), budget, row.turn + 1, constraint
        row.tokens, row.logprob, row.decoding, row.reason = [], [], True, RUNNING

    def cancel(self, row: Row) -> None:
        """Drop a row wherever it is; its slot is free at the next step."""
        if row.slot >= 0:
            self._slots[row.slot] = None
            row.slot = -1
        elif self._places is not None:
            self._places.discard(row)
        elif row in self._queue:
            self._queue.remove(row)
        row.decoding = False

    def step(self) -> list[Row]:
        """Fill free slots, append waiting suffixes, decode one round. Returns the rows whose turn is over, in slot order."""
        self._admit()
        self._append()
        return self._decode() if any(row is not None and row.decoding for row in self._slots) else []

    def _free(self) -> np.ndarray:
        return np.array([row is None for row in self._slots])

    def _admit(self) -> None:
        if self._places is not None:
            self._admit_to(self._places)
            return
        free = [slot for slot, row in enumerate(self._slots) if row is None]
        rows = [self._queue.popleft() for _ in range(min(len(free), len(self._queue)))]
        if not rows:
            return
        missing = [prompt for prompt in dict.fromkeys(row.prompt for row in rows) if prompt not in self._prompts]
        if missing:
            caches = self.sampler.prefill(self.weights, [list(prompt) for prompt in missing])
            self._prompts.update({prompt: (caches, i) for i, prompt in enumerate(missing)})
            self.stats["tokens_prefilled"] += sum(map(len, missing))
            self.stats["prompts_prefilled"] += len(missing)
        self.stats["tokens_reused"] += sum(len(row.prompt) for row in rows) - sum(map(len, missing))
        batches: dict[int, tuple[Any, list[int], list[int]]] = {}
        for row, slot in zip(rows, free):
            self._slots[slot], row.slot = row, slot
            caches, source = self._prompts[row.prompt]
            _, sources, slots = batches.setdefault(id(caches), (caches, [], []))
            sources.append(source)
            slots.append(slot)
        for caches, sources, slots in batches.values():
            self.state = self.sampler.insert(self.state, caches, sources, slots)
        self.stats["rows_inserted"] += len(rows)
        waiting = {row.prompt for row in self._queue}
        self._prompts = {prompt: cache for prompt, cache in self._prompts.items() if prompt in waiting}

    def _admit_to(self, places: Places) -> None:
        before = Counter(places.prefilled)
        self.state, seated = places.fill(self.weights, self.state, self._free())
        for row, slot in seated:
            self._slots[slot], row.slot = row, slot
        prefilled = places.prefilled - before
        self.stats["prompts_prefilled"] += prefilled["prompts"]
        self.stats["tokens_prefilled"] += prefilled["tokens"]
        self.stats["tokens_reused"] += sum(len(row.prompt) for row, _ in seated) - prefilled["tokens"]
        self.stats["rows_inserted"] += len(seated)

    def _append(self) -> None:
        rows = [row for row in self._slots if row is not None and row.suffix]
        if not rows:
            return
        self.state = self.sampler.append(self.weights, self.state, {row.slot: row.suffix for row in rows})
        self.stats["tokens_appended"] += sum(len(row.suffix) for row in rows)
        for row in rows:
            row.suffix = []

    def _check(self, constraint: Constraint | None) -> None:
        if constraint is not None and not self.sampler.constrained:
            raise ValueError("a row with a constraint needs a sampler made with constrained=True")

    def _decode(self) -> list[Row]:
        rows = [row for row in self._slots if row is not None and row.decoding]
        masks = self._masks(rows)
        if live := [row for row in rows if row.decoding]:
            self._sample(live, masks)
        return [row for row in rows if not row.decoding]

    def _masks(self, rows: list[Row]) -> np.ndarray | None:
        """[slots, W] bitmasks, None where no row has a constraint. Rows whose constraint leaves nothing to sample are over."""
        if all(row.constraint is None for row in rows):
            return None
        vocab = self.sampler.config.vocab
        masks = np.full((len(self._slots), words(vocab)), -1, np.int32)
        for row in rows:
            if row.constraint is not None and not row.over_when_stopped():
                masks[row.slot] = fitted(row.constraint.mask(), vocab)
                if not masks[row.slot].any():
                    row.decoding, row.reason = False, DEAD_END
        return masks

    def _sample(self, rows: list[Row], masks: np.ndarray | None) -> None:
        slots = [row.slot for row in rows]
        columns = np.zeros((5, len(self._slots)), np.int32)
        asked = [(row.seed, row.prompt_key, row.sample, row.turn, row.budget - len(row.tokens)) for row in rows]
        columns[:, slots] = np.transpose(asked)
        seed, *names, budgets = columns
        temperature = np.full(len(self._slots), self.temperature, np.float32)
        temperature[slots] = [row.temperature for row in rows]
        self.state, *drawn = self.sampler.decode(
            self.weights, self.state, keys=row_keys(seed, self.rl_step, *names), temperature=temperature, stop_ids=self.stop_ids,
            budgets=budgets, active=np.isin(np.arange(len(self._slots)), slots), wanted=max(1, int(len(rows) * WAKE_SHARE)),
            **({} if masks is None else {"allowed": masks}),
        )  # fmt: skip
        tokens, logprob, count, reason = jax.device_get(drawn)
        for row in rows:
            row.take(tokens[row.slot], logprob[row.slot], int(count[row.slot]), int(reason[row.slot]))
        self.stats["rounds"] += 1
        self.stats["compactions"] += self.sampler.compacts(slots)
        self.stats["tokens_decoded"] += int(count.sum())
        self.stats["slot_steps"] += int(count.max()) * len(self._slots)
