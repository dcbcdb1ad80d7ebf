"""The sampler: a fixed pool of slots, four jitted programs, no shape that is not in the bucket lists.

A turn can stop anywhere, take a tool result and go on without encoding anything twice: `prefill` runs each distinct prompt
once, `insert` copies its cache to the slots of its group, `append` feeds pieces into live rows, `decode` samples on the
device until rows stop. Each slot has a pending token (see `slca.rollout.programs`).

With `shared_slots` = w the slots stand in places of w neighbours that hold one prompt between them, and each slot only what follows
it: the rows of a group cost one prompt's memory, and a step reads it once for all of them. Then `place` and `start` do what
`insert` does.

A draw depends on the row's key and the token's position alone, so a row's tokens do not depend on its neighbours, slot,
padding, buckets or device count.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from slca.learn.sharding import settled
from slca.policy import cache
from slca.policy.config import ModelConfig
from slca.policy.transformer import split_layers
from slca.rollout import programs
from slca.rollout.constraint import checked
from slca.rollout.generate import generate
from slca.rollout.packing import append_calls, insert_calls, live_rows, padded, split, spread_calls
from slca.rollout.placement import placements
from slca.rollout.programs import BUDGET, CACHE_FULL, RUNNING, STOP, State, Weights, row_keys
from slca.types import Samples

__all__ = ["BUDGET", "CACHE_FULL", "RUNNING", "STOP", "PromptCache", "Sampler", "State", "Weights", "row_keys"]

MAX_STOP_IDS = 16
PREFILL_ROWS = (1, 8)  # prompts of one prefill
PREFILL_TOKENS = 32_768  # padded tokens of one prefill on a device: of long prompts fewer go together
THIN = 16  # with at least so many slots (a shard), a round with few live rows decodes a quarter of them
THIN_TOKENS = 2**18  # cache of a shard up to which it does: it works on copies, and on a TPU of the whole cache as well
APPEND_ROWS = 8  # least rows of one append (or all slots); an eighth of the slots where that is more
APPEND_TOKENS = 65_536  # cache of these rows, on a shard: `append` works on a copy of it


@dataclass(frozen=True)
class PromptCache:
    """Prefilled prompts: chunks of caches as long as their bucket, and where each prompt lies."""

    chunks: list[cache.KVCache]
    chunk: np.ndarray  # [P]
    row: np.ndarray  # [P]
    length: np.ndarray  # [P] tokens in the cache: all but the last
    last: np.ndarray  # [P]


class Sampler:
    """A pool of `slots` rows over one model. See the module's docstring for the invariant.

    Args:
        config: architecture; its dtype and attention are those of the sampler.
        slots: rows decoded together (B).
        cache_length: tokens a row may hold (S); 0 = config.max_length.
        prompt_buckets: padded prompt lengths, tokens; a longer prompt is refused.
        suffix_buckets: padded lengths of appended pieces; a longer one goes in several pieces.
        decode_steps: most tokens of one `decode` call (n).
        cache_dtype: float32 or bfloat16.
        constrained: whether `decode` may be given bitmasks; adds its program to the list.
        shared_slots: slots that share a prompt (w), a divisor of `slots` (of each shard's); 0 = every slot holds its own.
        own_length: with shared prompts, tokens of a slot behind its prompt; 0 = cache_length less the largest prompt bucket.
        compact: whether a round with few live rows may gather them and leave the other slots out.
        mesh: spread the slots over its axes `data` and `fsdp` (their number must divide `slots`), KV heads over `tensor`.

    Raises:
        ValueError: sizes that do not fit each other.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        slots: int = 64,
        cache_length: int = 0,
        prompt_buckets: Sequence[int] = (64, 256, 1024),
        suffix_buckets: Sequence[int] = (16, 64, 256),
        decode_steps: int = 32,
        cache_dtype: str = "float32",
        constrained: bool = False,
        shared_slots: int = 0,
        own_length: int = 0,
        compact: bool = True,
        mesh: jax.sharding.Mesh | None = None,
    ) -> None:
        self.config, self.slots, self.decode_steps, self.mesh = config, slots, decode_steps, mesh
        self.cache_length, self.cache_dtype, self.constrained = cache_length or config.max_length, cache_dtype, constrained
        self.prompt_buckets = tuple(sorted({min(bucket, self.cache_length) for bucket in prompt_buckets}))
        self.suffix_buckets = tuple(sorted(suffix_buckets))
        if slots < 1 or decode_steps < 1 or not self.prompt_buckets or not self.suffix_buckets:
            raise ValueError(
                f"sampler: slots {slots} and decode_steps {decode_steps} must be positive, "
                f"prompt_buckets {self.prompt_buckets} and suffix_buckets {self.suffix_buckets} not empty"
            )
        if self.cache_length > config.max_length:
            raise ValueError(f"sampler: cache_length {self.cache_length} exceeds the model's max_length {config.max_length}")
        self.shared_slots, self.places = shared_slots, slots // shared_slots if shared_slots else 0
        self.own_length = own_length or self.cache_length - self.prompt_buckets[-1] if shared_slots else self.cache_length
        if shared_slots < 0 or self.own_length < 1 or (own_length and not shared_slots):
            raise ValueError(
                f"sampler: shared_slots {shared_slots}, own_length {own_length}: places share prompts of up to "
                f"{self.prompt_buckets[-1]} of {self.cache_length} tokens; want room for the slots' own (own_length is for them alone)"
            )
        self.shards, state, prompt, layers, rows, whole = placements(config, mesh, slots, self.places)
        if shared_slots and slots % (self.shards * shared_slots):
            raise ValueError(
                f"sampler: {slots} slots on {self.shards} shard(s) are not places of shared_slots={shared_slots} neighbours each"
            )
        own = slots // self.shards  # each shard appends to rows of its own
        tokens = own * self.own_length + self.places // self.shards * self.prompt_buckets[-1]
        few = compact and own >= THIN and tokens <= THIN_TOKENS and not (shared_slots and own // 4 % shared_slots)
        self._decode_rows = (own // 4, own) if few else (own,)
        room = max(1, APPEND_TOKENS // self.cache_length)
        self._append_rows = min(own, room, max(-(-APPEND_ROWS // self.shards), own // 8))
        jit = functools.partial(jax.jit, donate_argnames="state")
        prepare = functools.partial(split_layers, config=config, fused=mesh is None)
        drawn = state and (state, *[whole] * 4)
        # The jitted function of each name in `programs`.
        self.functions: dict[str, Any] = {
            "init": jax.jit(self._empty, out_shardings=state),
            "prepare": jax.jit(prepare, out_shardings=layers),
            "prefill": jax.jit(functools.partial(programs.prefill, config, cache_dtype, rows), out_shardings=prompt),
            "append": jit(functools.partial(programs.append, config), out_shardings=state),
            "decode": jit(functools.partial(programs.decode, config, decode_steps), out_shardings=drawn),
            "decode_masked": jit(functools.partial(programs.decode, config, 1), out_shardings=drawn),
        }
        for name in ("load", "start", "spread") if shared_slots else ("insert",):  # functions of their own: jit shares caches
            self.functions[name] = jit(functools.partial(getattr(programs, name)), out_shardings=state)

    @property
    def capacity(self) -> int:
        """Tokens a row may hold in its cache, prompt included; see `own_length`."""
        return self.cache_length

    @property
    def programs(self) -> list[tuple[str, tuple[int, ...]]]:
        """(function, bucket) of every program this sampler can compile; there are no others."""
        prompts = [(rows, bucket) for bucket in self.prompt_buckets for rows in self._prefill_rows(bucket)]
        listed: list[tuple[str, tuple[int, ...]]] = [("init", (self.slots,)), ("prepare", ())]
        listed += [("prefill", shape) for shape in prompts]
        listed += [("load" if self.places else "insert", shape) for shape in prompts]
        listed += [("start", (self.slots,))] if self.places else []
        listed += [("spread", (self.shards,))] if self.places > self.shards else []
        listed += [("append", (self.shards * self._append_rows, bucket)) for bucket in self.suffix_buckets]
        listed += [("decode", (self.shards * rows, self.decode_steps)) for rows in self._decode_rows]
        return listed + [("decode_masked", (self.shards * rows, 1)) for rows in self._decode_rows if self.constrained]

    def _prefill_rows(self, bucket: int) -> tuple[int, ...]:
        """Prompts of one prefill: on a mesh always the same number on each shard."""
        least, most = PREFILL_ROWS[0], -(-PREFILL_ROWS[-1] // self.shards)
        most = max(least, min(most, PREFILL_TOKENS // bucket))
        return tuple(sorted({least, most})) if self.mesh is None else (most * self.shards,)

    def compiles(self) -> int:
        """Programs compiled so far; at most `len(programs)`, also after changes of temperature, stop ids or lengths."""
        return sum(function._cache_size() for function in self.functions.values())

    def nbytes(self) -> int:
        """Bytes of the cache of all slots, and of the places' prompts, over all devices."""
        own = cache.nbytes(self.config, self.slots, self.own_length, self.cache_dtype)
        return own + cache.nbytes(self.config, self.places, self.prompt_buckets[-1], self.cache_dtype)

    def init(self) -> State:
        """All slots empty."""
        state = self.functions["init"]()
        return settled(state) if self.mesh is None else state

    def prepare(self, params: Any) -> Weights:
        """Slice and cast the layers once. Every method takes the result in place of `params`; hold it for one rollout only."""
        return params if isinstance(params, Weights) else Weights(params, self.functions["prepare"](params))

    def prefill(self, params: Any, prompts: Sequence[Sequence[int]]) -> PromptCache:
        """Run each prompt once; its last token stays pending.

        Raises:
            ValueError: an empty prompt, or one longer than the largest bucket.
        """
        params = params.params if isinstance(params, Weights) else params
        chunk, row = np.zeros(len(prompts), int), np.zeros(len(prompts), int)
        chunks: list[cache.KVCache] = []
        for bucket, rows, members in self.batches([len(prompt) for prompt in prompts]):
            chunk[members], row[members] = len(chunks), np.arange(len(members))
            chunks.append(self.functions["prefill"](params, padded([prompts[i] for i in members], rows, bucket)))
        length = np.array([len(prompt) - 1 for prompt in prompts], np.int32)
        return PromptCache(chunks, chunk, row, length, np.array([prompt[-1] for prompt in prompts], np.int32))

    def batches(self, lengths: Sequence[int]) -> list[tuple[int, int, np.ndarray]]:
        """(bucket, rows, which prompts) of each `prefill` program that prompts of these lengths take; errors as there."""
        for number, length in enumerate(lengths):
            if not 0 < length <= self.prompt_buckets[-1]:
                raise ValueError(f"prompt {number} has {length} tokens; 1 to {self.prompt_buckets[-1]} fit the prompt buckets")
        buckets = np.array([next(b for b in self.prompt_buckets if b >= length) for length in lengths], int)
        out = []
        for bucket in np.unique(buckets).tolist():
            sizes = self._prefill_rows(bucket)
            for members in split(np.flatnonzero(buckets == bucket), sizes):
                out.append((bucket, next(size for size in sizes if size >= len(members)), members))
        return out

    def insert(self, state: State, prompts: PromptCache, source: Any, slots: Any) -> State:
        """Start a row in `slots[i]` from prompt `source[i]` (a prompt may be used any number of times). Donates `state`.

        With shared prompts: `place`, then `start`. The slots of a place take the same prompt, as do its rows that still run.
        """
        if not self.places:
            return self._copy("insert", state, prompts, source, slots, self.slots)
        wanted: dict[int, int] = {}
        for prompt, slot in zip(source, slots, strict=True):
            if wanted.setdefault(slot // self.shared_slots, prompt) != prompt:
                raise ValueError(f"insert: two prompts for place {slot // self.shared_slots}, which holds one for its slots")
        state = self.place(state, prompts, list(wanted.values()), list(wanted))
        return self.start(state, slots)

    def place(self, state: State, prompts: PromptCache, source: Any, places: Any) -> State:
        """Put prompt `source[i]` in place `places[i]`, all of whose rows have ended. Donates `state`."""
        return self._copy("load", state, prompts, source, places, self.places)

    def start(self, state: State, slots: Any) -> State:
        """Start a row in each of `slots` from the prompt of its place. Donates `state`."""
        return self.functions["start"](state, np.isin(np.arange(self.slots), slots))

    def spread(self, state: State, pairs: Sequence[tuple[int, int]]) -> State:
        """Copy the prompt of the first place to the second, both of one shard, for each of `pairs`. Donates `state`."""
        for call in spread_calls(pairs, self.places // self.shards, self.shards):
            state = self.functions["spread"](state, *call)
        return state

    def _copy(self, name: str, state: State, prompts: PromptCache, source: Any, targets: Any, room: int) -> State:
        rows, places = np.asarray(source, np.int32), np.asarray(targets, np.int32)
        if len(rows) != len(places) or len(np.unique(places)) != len(places) or not np.isin(places, range(room)).all():
            what = "places" if self.places else "slots"
            raise ValueError(f"{name}: {len(rows)} sources for {what} {places.tolist()}; want as many, distinct, below {room}")
        columns = prompts.row, prompts.length, prompts.last
        for chunk, call in insert_calls(prompts.chunk, columns, rows, places, room):
            state = self.functions[name](state, prompts.chunks[chunk], *call)
        return state

    def append(self, params: Any, state: State, suffixes: Mapping[int, Sequence[int]]) -> State:
        """Feed ids that were not sampled (slot -> ids); the last one becomes pending. Donates `state`.

        The caller keeps rows inside the cache: a row of length n takes at most `capacity - n - 1` more tokens; what does not
        fit is not written, and `decode` reports the row as CACHE_FULL.
        """
        weights = self.prepare(params)
        pieces = {slot: list(ids) for slot, ids in suffixes.items() if len(ids)}
        while pieces:
            heads = {slot: ids[: self.suffix_buckets[-1]] for slot, ids in pieces.items()}
            pieces = {slot: ids[len(heads[slot]) :] for slot, ids in pieces.items() if len(ids) > len(heads[slot])}
            for bucket in self.suffix_buckets:
                fits = {slot: heads.pop(slot) for slot in sorted(heads) if len(heads[slot]) <= bucket}
                for call in append_calls(fits, bucket, self._append_rows, self.slots // self.shards, self.shards):
                    state = self.functions["append"](weights, state, *call)
        return state

    def decode(
        self,
        params: Any,
        state: State,
        *,
        keys: Any,
        temperature: Any,
        stop_ids: Sequence[int],
        budgets: Any,
        active: Any = None,
        wanted: int = 0,
        allowed: Any = None,
    ) -> tuple[State, Array, Array, Array, Array]:
        """Sample until `decode_steps` tokens, or until `wanted` rows have stopped (0: until none runs). Donates `state`.

        With `allowed` one token a row is sampled and n is 1: the masks change with every token. Rows whose bits are all set
        get what they would get without.

        Args:
            keys: [B] typed keys (see `row_keys`) or their [B, 2] data, one a row and turn.
            temperature: number or [B]; 0, and what is below 0.001, is greedy.
            stop_ids: ids that end a row; the stop token itself is sampled, counted and pending. At most 16.
            budgets: [B] tokens each row may still sample in this turn.
            active: [B] rows to run; None = those with a budget.
            allowed: int32 [B, ceil(V / 32)] bitmasks (see `slca.rollout.constraint`) of a sampler made with `constrained=True`.

        Returns:
            (state, tokens [B, n], logprob [B, n], count [B], reason [B]): the first count[b] entries of row b are sampled
            tokens with their log-probs at the row's temperature; reason is RUNNING, STOP, BUDGET or CACHE_FULL (no room for
            another token after the pending one). Under a mask the log-prob is that of the renormalised distribution over the
            allowed tokens, not the policy's over the vocabulary. Arrays stay on the device until they are read.

        Raises:
            ValueError: too many stop ids; masks of another shape, without a bit for an active row, or not asked for.
        """
        if len(stop_ids) > MAX_STOP_IDS:
            raise ValueError(f"decode: {len(stop_ids)} stop ids, at most {MAX_STOP_IDS}")
        if isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
            keys = jax.random.key_data(keys)
        budgets = np.asarray(budgets, np.int32)
        active = budgets > 0 if active is None else np.asarray(active, bool)
        if allowed is not None and not self.constrained:
            raise ValueError("decode: this sampler was made without constrained=True, so it has no program for masks")
        masks = () if allowed is None else (checked(allowed, active, self.config.vocab),)
        return self.functions["decode_masked" if masks else "decode"](
            self.prepare(params),
            state,
            self._live_rows(active),
            np.asarray(keys),
            np.broadcast_to(np.asarray(temperature, np.float32), budgets.shape),
            np.pad(np.asarray(stop_ids, np.int32), (0, MAX_STOP_IDS - len(stop_ids)), constant_values=-1),
            budgets,
            active,
            np.int32(wanted or self.slots + 1),
            *masks,
        )

    def compacts(self, rows: Any) -> bool:
        """Whether `decode` would gather these live slots and leave the others out (they are few, counted within each shard)."""
        active = np.zeros(self.slots, bool)
        active[rows] = True
        return self._live_rows(active).size < self.slots

    def _live_rows(self, active: np.ndarray) -> np.ndarray:
        """[shards, R] slots to decode: all of them, or a quarter (in whole places) where that holds every live row."""
        return live_rows(active, self.shards, self._decode_rows, self.shared_slots or 1)

    def generate(
        self,
        params: Any,
        prompts: Sequence[Sequence[int]],
        *,
        keys: Any,
        max_new_tokens: int,
        temperature: Any = 1.0,
        stop_ids: Sequence[int] = (),
    ) -> Samples:
        """One continuation of each prompt (see `slca.rollout.generate.generate`)."""
        return generate(
            self, params, prompts, keys=keys, max_new_tokens=max_new_tokens, temperature=temperature, stop_ids=stop_ids
        )

    def _empty(self) -> State:
        def rows(number: int, length: int) -> tuple[Any, Array, Array]:
            kv = cache.init(self.config, number, length, self.cache_dtype)
            return kv, jnp.zeros(number, jnp.int32), jnp.zeros(number, jnp.int32)

        prompts = cache.Prompts(*rows(self.places, self.prompt_buckets[-1])) if self.places else None
        return State(*rows(self.slots, self.own_length), prompts)
