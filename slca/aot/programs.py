"""The device programs of a run, as the run makes them, with shapes in the place of arrays: nothing is ever materialised.

On a topology of several hosts the update runs over all chips; each host samples on its own chips with a whole copy of the
parameters, as in training (`slca.assemble.own_parts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from slca.assemble import make_sampler
from slca.learn.forward import policy_forward
from slca.learn.pieces import shares_prompts
from slca.learn.shapes import batch_shapes, empty
from slca.learn.sharding import by_rows, row_shards, shardings, state_shardings
from slca.learn.terms import make_terms
from slca.learn.update import init_state, make_update
from slca.phases import phase_optimizer, reference_needed
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.rollout.placement import placements
from slca.rollout.programs import Weights
from slca.rollout.sampler import MAX_STOP_IDS, Sampler
from slca.types import TrainState


class Program(NamedTuple):
    """One compiled unit. size: for the reader; beside: bytes that a chip holds while it runs without being its arguments;
    trips: of a loop that ends when rows stop; passes: over its arguments; tokens: new ones of a call; chips: that run it together."""

    name: str
    size: str
    function: Any
    arguments: tuple[Any, ...]
    beside: float
    trips: int
    passes: int
    tokens: int
    chips: int


class Shapes(NamedTuple):
    """What the programs share. state: the TrainState on `mesh`; here, params: mesh and parameters of the sampler."""

    config: Any
    model: ModelConfig
    mesh: Mesh
    here: Mesh
    hosts: int
    optimizer: Any
    state: TrainState
    params: Any

    @property
    def reference(self) -> bool:
        """Whether the run keeps a frozen copy of the policy."""
        return reference_needed(self.config)


def shapes(config: Any, model: ModelConfig, mesh: Mesh, here: Mesh, hosts: int) -> Shapes:
    """The state of the RL phase, placed on `mesh` as training places it. here: the mesh that each of the hosts samples on."""
    axes, tx = transformer.logical_axes(model), phase_optimizer(config, model, "rl")
    params = jax.eval_shape(lambda: transformer.init(model, jax.random.key(0)))
    state = jax.eval_shape(lambda p: init_state(p, tx, jax.random.key(0)), params)
    if hosts > 1:
        params = jax.eval_shape(lambda p: transformer.computed(p, model), params)
    state, params = placed(state, state_shardings(state, axes, mesh)), placed(params, shardings(params, axes, here))
    return Shapes(config, model, mesh, here, hosts, tx, state, params)


def placed(tree: Any, places: Any) -> Any:
    """ShapeDtypeStructs with these shardings."""
    return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, places)


def bytes_a_chip(tree: Any) -> float:
    """Bytes of a tree of placed shapes on one chip."""
    arrays = [x for x in jax.tree.leaves(tree) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum(math.prod(x.sharding.shard_shape(x.shape) if x.sharding else x.shape) * x.dtype.itemsize for x in arrays)


def update(s: Shapes) -> Program:
    """The optimiser step over the mini-batch of a step: rows for rollouts that all have the longest length, as every step of a run has them."""
    c, rows_at = s.config, by_rows(s.mesh)
    hidden, unembed = policy_forward(s.model, s.mesh)
    places = jax.tree.map(lambda x: x.sharding, s.state)
    terms = make_terms(_record(c).terms)
    function = make_update(hidden, unembed, s.optimizer, c, mesh=s.mesh, placement=places, terms=terms)
    unit = c.train.micro_rows * row_shards(s.mesh)
    length = max(c.train.row_lengths)
    groups = _record(c).whole_groups
    rows = batch_shapes(c, c.rollout.prompts // c.train.mini_batches, row_shards(s.mesh), groups=groups)[length]
    example = empty(1, length, groups, shares_prompts(c.train, groups))
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, length), x.dtype, sharding=rows_at), example)
    beside = bytes_a_chip(s.state.params) if s.reference else 0.0
    size = f"{rows} rows x {length:,} tokens, {rows // unit} micro-batches"
    return Program("update", size, function, (s.state, batch), beside, 1, rows // unit, rows * length, s.mesh.size)


def _record(config: Any) -> Any:
    from slca.credit.algorithms import algorithm

    return algorithm(config.credit.algorithm, config.credit)


def state_of(s: Shapes, pool: Sampler) -> Any:
    """The device state of all slots."""
    return placed(jax.eval_shape(pool.functions["init"]), placements(s.model, s.here, pool.slots, pool.places).state)


def slot_unit(s: Shapes) -> int:
    """Slots of a host come in multiples of this: a row, or a place with all its slots, for each part that its mesh splits."""
    return row_shards(s.here) * max(1, s.config.rollout.shared_slots)


def asked_slots(s: Shapes) -> int:
    """Slots of one host that the config asks for: an even share, in whole units."""
    r, unit = s.config.rollout, slot_unit(s)
    return max(1, -(-min(r.slots, r.prompts * r.group) // (unit * s.hosts))) * unit


def pool_of(s: Shapes, slots: int) -> Sampler:
    """The sampler of a host's rollouts with so many slots, its prompts shared as in the config."""
    return make_sampler(s.config, s.model, s.here, slots, s.config.rollout.shared_slots)


def sampling(s: Shapes, slots: int) -> Iterator[Program]:
    """Of one host, over its own chips: prefill and insert at the longest prompts, append of the longest pieces, decode of all rows, and
    decode_few where the sampler has a program for rounds with few live rows, which works on a copy of theirs.

    With shared prompts `insert` loads places, and `spread` copies a prompt to another place; prompts are let go once they are in theirs.
    """
    pool, c = pool_of(s, slots), s.config
    chips, prompts = s.here.size, pool.prompt_buckets[-1]
    places, make = placements(s.model, s.here, slots, pool.places), pool.functions
    decodes = [(name, shape) for name, shape in pool.programs if name == "decode"]
    rows, _ = next(shape for name, shape in reversed(pool.programs) if name == "prefill" and shape[1] == prompts)
    tokens = jax.ShapeDtypeStruct((rows, prompts), jnp.int32)
    state = state_of(s, pool)
    weights = Weights(s.params, placed(jax.eval_shape(make["prepare"], s.params), places.layers))
    chunk = placed(jax.eval_shape(make["prefill"], s.params, tokens), places.prompt)
    masters = bytes_a_chip(s.state.params)
    beside = bytes_a_chip(s.state) + (masters if s.reference else 0)
    if s.hosts == 1:
        beside -= masters  # it samples with the state's own parameters
    elif c.reward.kl_coef > 0:
        beside += bytes_a_chip(s.params)  # its copy of the reference
    layers, slot_bytes, prompt_bytes = (bytes_a_chip(x) for x in (weights.layers, state, chunk))
    # of the first round; later at most one waits for its rows
    chunks = 1 if pool.places else math.ceil(math.ceil(slots / c.rollout.group) / rows)
    yield Program(
        "prefill", f"{rows} prompts x {prompts:,} tokens", make["prefill"], (s.params, tokens),
        beside + layers + slot_bytes + (chunks - 1) * prompt_bytes, 1, 1, rows * prompts, chips,
    )  # fmt: skip
    whole = jax.ShapeDtypeStruct((), jnp.int32)
    room, what, function = (pool.places, "places", make["load"]) if pool.places else (slots, "slots", make["insert"])
    column = jax.ShapeDtypeStruct((room,), jnp.int32)
    sliced = layers + bytes_a_chip(s.params)
    yield Program(
        "insert", f"{room} {what} from {rows} prompts", function, (state, chunk, whole, *[column] * 4),
        beside + sliced + (chunks - 1) * prompt_bytes, room, 1, room, chips,
    )  # fmt: skip
    if any(name == "spread" for name, _ in pool.programs):
        pair = jax.ShapeDtypeStruct((pool.shards, 1), jnp.int32)
        size = f"{pool.shards} of {pool.places} places"
        yield Program("spread", size, make["spread"], (state, pair, pair), beside + sliced, 1, 1, pool.shards, chips)
    beside += 0 if pool.places else prompt_bytes
    yield _append(pool, places.shards, state, weights, beside)
    for name, rows in zip(("decode", "decode_few"), sorted({rows for name, (rows, _) in decodes}, reverse=True)):
        yield _decode(pool, name, (places.shards, rows // places.shards), state, weights, beside)


def _append(pool: Sampler, shards: int, state: Any, weights: Weights, beside: float) -> Program:
    rows, piece = next(shape for name, shape in reversed(pool.programs) if name == "append")
    shape = (shards, rows // shards)
    tokens, column = jax.ShapeDtypeStruct((*shape, piece), jnp.int32), jax.ShapeDtypeStruct(shape, jnp.int32)
    arguments = (weights, state, tokens, *[column] * 3)
    size = f"{rows} of {pool.slots} slots, {piece:,} tokens"
    return Program("append", size, pool.functions["append"], arguments, beside, 1, 1, rows * piece, _chips(pool))


def _decode(pool: Sampler, name: str, rows: tuple[int, int], state: Any, weights: Weights, beside: float) -> Program:
    slots, of = pool.slots, jax.ShapeDtypeStruct
    column = of((slots,), jnp.int32)
    arguments = (
        weights, state, of(rows, jnp.int32), of((slots, 2), jnp.uint32), of((slots,), jnp.float32),
        of((MAX_STOP_IDS,), jnp.int32), column, of((slots,), jnp.bool_), of((), jnp.int32),
    )  # fmt: skip
    live, steps = math.prod(rows), pool.decode_steps
    shared = f" + {pool.places} places x {pool.prompt_buckets[-1]:,}" if pool.places else ""
    size = f"{live} of {slots} slots x {pool.own_length:,} tokens{shared}, {steps} steps"
    return Program(name, size, pool.functions["decode"], arguments, beside, steps, steps, live * steps, _chips(pool))


def _chips(pool: Sampler) -> int:
    return 1 if pool.mesh is None else pool.mesh.size
