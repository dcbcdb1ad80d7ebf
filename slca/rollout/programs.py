"""The sampler's device programs: pure functions over a pool of slots, jitted by `slca.rollout.sampler.Sampler`.

A slot holds one row: `length` tokens in the cache and one *pending* token `last`, sampled or appended but not in the cache
yet. Every program keeps that invariant.

With shared prompts the slots stand in places of w neighbours. A place holds one prompt (all but its last token), a slot only
what follows it: slot s of a row's cache is position prompt + s. `length` counts both.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from slca.policy import cache
from slca.policy.config import ModelConfig
from slca.policy.transformer import Transformer, forward_cached, logits, unembed

CDF_BLOCK = 128
LEAST_TEMPERATURE = 1e-3  # what lies below counts as 0: scores over it overflow, and training takes nothing below either

# Why a row stopped in `decode`. RUNNING: neither; it goes on with the next call.
RUNNING, STOP, BUDGET, CACHE_FULL = 0, 1, 2, 3


class State(NamedTuple):
    """Device state of all slots. Donated by every call that returns a new one."""

    cache: cache.KVCache
    length: Int[Array, " B"]  # tokens in the cache
    last: Int[Array, " B"]  # the pending token
    prompts: cache.Prompts | None = None  # of the places, where prompts are shared


class Weights(NamedTuple):
    """Parameters with their layers sliced for decoding (`Sampler.prepare`); drop it when the parameters change."""

    params: Any
    layers: list[Any]


@jax.jit
def row_keys(seed: Any, step: Any, prompt: Int[Array, " B"], sample: Int[Array, " B"], turn: Int[Array, " B"]) -> Any:
    """One key a row from what identifies its draws, [B] typed keys; `decode` folds in the position. seed: a number or [B]."""

    def fold(seed: Array, *parts: Array) -> Any:
        key = jax.random.key(seed)
        for part in (step, *parts):
            key = jax.random.fold_in(key, part)
        return key

    return jax.vmap(fold)(jnp.broadcast_to(seed, prompt.shape), prompt, sample, turn)


def masked(scores: Float[Array, "B V"], allowed: Int[Array, "B W"]) -> Float[Array, "B V"]:
    """Scores whose tokens are -inf where their bit is off: bit v % 32 of word v // 32 belongs to token v."""
    bits = (allowed[:, :, None] >> jnp.arange(32, dtype=jnp.int32)[None, None]) & 1
    return jnp.where(bits.reshape(len(scores), -1)[:, : scores.shape[1]] == 1, scores, -jnp.inf)


def draw(
    keys: Any, positions: Int[Array, " B"], scores: Float[Array, "B V"], temperature: Float[Array, " B"]
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """One token a row by inverse CDF (one uniform number each) and its log-prob under log_softmax(scores / T).

    T = 0, or below LEAST_TEMPERATURE, takes the argmax and reports its log-prob at T = 1. A token with score -inf is never drawn. The CDF is summed by blocks
    and only the block that is hit is summed by token: two passes over the scores, where a plain cumulated sum takes many.
    """
    greedy = temperature < LEAST_TEMPERATURE
    scaled = scores / jnp.where(greedy, 1.0, temperature)[:, None]
    top = scaled.max(-1)
    blocks = jnp.pad(scaled, ((0, 0), (0, -scores.shape[1] % CDF_BLOCK)), constant_values=-jnp.inf)
    blocks = blocks.reshape(len(scores), -1, CDF_BLOCK)
    sums = jnp.exp(blocks - top[:, None, None]).sum(-1)
    ends = jnp.cumsum(sums, -1)
    uniform = jax.vmap(lambda key, position: jax.random.uniform(jax.random.fold_in(key, position)))(keys, positions)
    target = uniform * ends[:, -1]
    block = _passing(ends, sums, target)
    here = jnp.take_along_axis(blocks, block[:, None, None], 1)[:, 0]
    mass = jnp.exp(here - top[:, None])
    begin = jnp.take_along_axis(ends - sums, block[:, None], 1)
    drawn = block * CDF_BLOCK + _passing(begin + jnp.cumsum(mass, -1), mass, target)
    best = lax.cond(greedy.any(), lambda: jnp.argmax(scores, -1), lambda: drawn)
    token = jnp.where(greedy, best, drawn).astype(jnp.int32)
    return token, jnp.take_along_axis(scaled, token[:, None], 1)[:, 0] - top - jnp.log(ends[:, -1])


def _passing(cdf: Float[Array, "B n"], mass: Float[Array, "B n"], target: Float[Array, " B"]) -> Int[Array, " B"]:
    """The first place at which the cumulated mass passes `target`; never one without mass, however the sums were rounded."""
    some = mass > 0
    passed = some & (cdf > target[:, None])
    last = cdf.shape[1] - 1 - jnp.argmax(some[:, ::-1], -1)
    return jnp.where(passed.any(-1), jnp.argmax(passed, -1), last)


def prefill(config: ModelConfig, dtype: str, rows: Any, params: Any, tokens: Int[Array, "P T"]) -> cache.KVCache:
    """The cache of right-padded prompts, as long as their bucket; what lies behind a prompt is never read.

    rows: sharding that spreads the prompts over a mesh, or None.
    """
    mesh: Any = nullcontext()
    if rows is not None:  # kernels that the compiler cannot split ask for the mesh
        tokens, mesh = lax.with_sharding_constraint(tokens, rows), jax.sharding.use_abstract_mesh(rows.mesh.abstract_mesh)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)
    with mesh:
        result: Any = Transformer(config).apply({"params": params}, tokens, positions, keep_kv=True)
    keys, values = result[1]
    return cache.from_prefill(keys, values, dtype)


def insert(
    state: Any,
    prompts: cache.KVCache,
    count: Int[Array, ""],
    source: Int[Array, " B"],
    slot: Int[Array, " B"],
    length: Int[Array, " B"],
    last: Int[Array, " B"],
) -> Any:
    """Copy prompt `source[i]` to slot `slot[i]` for i < count (the arrays are padded to the number of slots); state: State or Prompts."""

    def copy(i, kv):
        def put(old, new):
            piece = lax.dynamic_slice_in_dim(new, source[i], 1)
            return lax.dynamic_update_slice(old, piece, (slot[i], *(0,) * (old.ndim - 1)))

        return jax.tree.map(put, kv, prompts)

    kv = lax.fori_loop(0, count, copy, state.cache)
    slot = jnp.where(jnp.arange(slot.size) < count, slot, slot.size)
    return type(state)(kv, state.length.at[slot].set(length, mode="drop"), state.last.at[slot].set(last, mode="drop"))


def load(state: State, *prompts: Any) -> State:
    """`insert` into places: prompts that slots can `start` from. Rows of another prompt must have left."""
    return state._replace(prompts=insert(state.prompts, *prompts))


def start(state: State, slots: Bool[Array, " B"]) -> State:
    """Begin a row in the chosen slots from the prompts of their places; nothing is copied."""
    assert state.prompts is not None
    length, last = (jnp.repeat(x, slots.size // x.size) for x in (state.prompts.length, state.prompts.last))
    return state._replace(length=jnp.where(slots, length, state.length), last=jnp.where(slots, last, state.last))


def spread(state: State, source: Int[Array, "D 1"], place: Int[Array, "D 1"]) -> State:
    """Copy a prompt to another place of the same shard, one on each; both are counted within the shard (see `take`)."""
    return state._replace(prompts=put(state.prompts, place, take(state.prompts, source)))


def take(x: Any, rows: Int[Array, "D R"]) -> Any:
    """Leaves [B, ...] -> [D R, ...]: the B slots lie in D equal ranges, one a shard of the mesh, and rows[d] counts within range d.

    A shard gathers only rows of its own, so no cache crosses devices. Where R is the whole range nothing moves: row r is slot r.
    """

    def leaf(x: Array) -> Array:
        own = x.shape[0] // rows.shape[0]
        return x if rows.shape[1] == own else _gather(x, rows)

    return jax.tree.map(leaf, x)


def _gather(x: Array, rows: Int[Array, "D R"]) -> Array:
    taken = jax.vmap(lambda x, row: x[row])(x.reshape(rows.shape[0], -1, *x.shape[1:]), rows)
    return taken.reshape(rows.size, *x.shape[1:])


def put(x: Any, rows: Int[Array, "D R"], new: Any) -> Any:
    """Undo `take`: leaves [D R, ...] back into [B, ...]; a row at B / D or beyond is dropped."""

    def leaf(x: Array, new: Array) -> Array:
        own = x.shape[0] // rows.shape[0]
        if rows.shape[1] == own:
            return new
        old, new = x.reshape(rows.shape[0], own, *x.shape[1:]), new.reshape(*rows.shape, *x.shape[1:])
        return jax.vmap(lambda x, row, new: x.at[row].set(new, mode="drop"))(old, rows, new).reshape(x.shape)

    return jax.tree.map(leaf, x, new)


def beside(prompts: cache.Prompts | None, rows: Int[Array, "D R"], slots: int, whole: bool) -> tuple[Any, Array]:
    """(prompts of the `rows` of `slots`, tokens of each row's prompt), None and zeros where none are shared.

    whole: the rows come by places, all those of a place in order, so its prompt is taken once. Else each takes a copy, unless
    all rows are there.
    """
    if prompts is None:
        return None, jnp.zeros(rows.size, jnp.int32)
    width = slots // prompts.length.size
    if rows.shape[1] < slots // rows.shape[0]:
        places = (rows[:, ::width] if whole else rows) // width
        prompts = jax.tree.map(lambda x: _gather(x, places), prompts)  # not `take`: as many rows as places are not all places
    return prompts, jnp.repeat(prompts.length, rows.size // prompts.length.size)


def append(
    config: ModelConfig,
    weights: Weights,
    state: State,
    tokens: Int[Array, "D R C"],
    count: Int[Array, "D R"],
    rows: Int[Array, "D R"],
    last: Int[Array, "D R"],
) -> State:
    """Put `count` ids of `tokens` into the slots `rows` (see `take`); `last` becomes their pending token.

    tokens[..., 0] is a place holder for the pending token that they follow. rows[d, r] = B / D: nothing.
    """
    capacity = state.cache[0].keys.shape[3]
    part = (rows < state.length.size // rows.shape[0]).reshape(-1)
    shared, state = state.prompts, state._replace(prompts=None)
    prompts, begin = beside(shared, rows, state.length.size, whole=False)
    kv, length, pending, _ = take(state, rows)
    fresh = count.reshape(-1)
    tokens = tokens.reshape(rows.size, -1).at[:, 0].set(pending)
    index = jnp.arange(tokens.shape[1])[None]
    positions = length[:, None] + index
    target = jnp.where((index < fresh[:, None]) & part[:, None], positions - begin[:, None], capacity)
    _, kv = forward_cached(weights.params, weights.layers, config, tokens, positions, target, kv, prompts)
    state = put(state, rows, State(kv, length + fresh, jnp.where(part, last.reshape(-1), pending)))
    return state._replace(prompts=shared)


class _Loop(NamedTuple):
    """What the decode loop carries."""

    step: Int[Array, ""]
    state: State
    tokens: Int[Array, "B n"]
    logprob: Float[Array, "B n"]
    counts: Int[Array, " B"]
    reason: Int[Array, " B"]


def decode(
    config: ModelConfig,
    steps: int,
    weights: Weights,
    state: State,
    rows: Int[Array, "D R"],
    key_data: UInt32[Array, "B 2"],
    temperature: Float[Array, " B"],
    stop_ids: Int[Array, " n"],
    budgets: Int[Array, " B"],
    active: Bool[Array, " B"],
    wanted: Int[Array, ""],
    allowed: Int[Array, "B W"] | None = None,
) -> tuple[State, Int[Array, "B steps"], Float[Array, "B steps"], Int[Array, " B"], Int[Array, " B"]]:
    """Sample up to `steps` tokens in the slots `rows` (see `take`), or until `wanted` rows have stopped. See `Sampler.decode`.

    allowed: bitmasks (see `masked`) that hold for every token of the call, so `steps` is 1 with them.
    """
    shared, whole, slots = state.prompts, state._replace(prompts=None), state.length.size
    prompts, begin = beside(shared, rows, slots, whole=True)
    state, key_data, temperature, budgets, active, allowed = take(
        (whole, key_data, temperature, budgets, active, allowed), rows
    )
    active &= (rows < slots // rows.shape[0]).reshape(-1)
    keys = jax.random.wrap_key_data(key_data)
    head = unembed(weights.params, config)
    size, capacity = rows.size, state.cache[0].keys.shape[3]

    def verdict(running: Array, token: Array, count: Array, length: Array) -> Array:
        """The reason of each row after `token`; a stop token wins over the budget, the budget over the cache."""
        reason = jnp.where(length - begin >= capacity, CACHE_FULL, RUNNING)
        reason = jnp.where(count >= budgets, BUDGET, reason)
        reason = jnp.where((token[:, None] == stop_ids[None]).any(-1), STOP, reason)
        return jnp.where(running, reason, RUNNING)

    def busy(c: _Loop) -> Array:
        stopped = (c.reason != RUNNING).sum()
        return (c.step < steps) & (active & (c.reason == RUNNING)).any() & (stopped < wanted)

    def step(c: _Loop) -> _Loop:
        running = active & (c.reason == RUNNING)
        kv, length, last, _ = c.state
        target = jnp.where(running, length - begin, capacity)[:, None]
        hidden, kv = forward_cached(weights.params, weights.layers, config, last[:, None], length[:, None], target, kv, prompts)
        scores = logits(hidden[:, 0], head)
        scores = scores if allowed is None else masked(scores, allowed)
        token, logprob = draw(keys, length + 1, scores, temperature)
        length = length + running
        last = jnp.where(running, token, last)
        column, count = jnp.where(running, c.counts, steps), c.counts + running
        return _Loop(
            c.step + 1,
            State(kv, length, last),
            record(c.tokens, column, token),
            record(c.logprob, column, logprob),
            count,
            jnp.where(running, verdict(running, token, count, length), c.reason),
        )

    record = jax.vmap(lambda row, at, value: row.at[at].set(value, mode="drop"))
    no_token = jnp.full(size, -2, jnp.int32)  # rows without budget or room stop before their first token
    none = jnp.zeros(size, jnp.int32)
    blank = jnp.zeros((size, steps))
    start = _Loop(jnp.int32(0), state, blank.astype(jnp.int32), blank, none, verdict(active, no_token, none, state.length))
    end = lax.while_loop(busy, step, start)
    drawn = (end.tokens, end.logprob, end.counts, end.reason)
    blank = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype), drawn)
    return put(whole, rows, end.state)._replace(prompts=shared), *put(blank, rows, drawn)
