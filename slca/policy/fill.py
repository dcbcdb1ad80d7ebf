"""One parameter from the tensors of a file, straight to the devices that hold it, a tensor at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from slca.policy.layout import Place


def fill(
    shape: jax.ShapeDtypeStruct, sharding: Any, group: list[Place], read: Callable[..., np.ndarray]
) -> tuple[jax.Array, str]:
    """One parameter from its tensors (one a layer, or a single one), layer by layer straight to the devices that hold it; and the
    name of a tensor of which this host read a number that is not finite, or "".

    A stack is written in place, so neither host nor device ever holds more than the stack and one layer.
    """
    stacked = group[0].layer >= 0
    shards: dict[Any, jax.Array] = {}
    finite: dict[str, list[jax.Array]] = {}
    homes = {
        device: index if index is not None else (slice(None),) * len(shape.shape)
        for device, index in sharding.addressable_devices_indices_map(shape.shape).items()
    }
    for number, place in enumerate(group):
        flags = _fill_one(shards, homes, number if stacked else None, len(group), place, read, shape.dtype)
        finite.setdefault(place.name, []).extend(jax.block_until_ready(flags))
        jax.block_until_ready(list(shards.values()))  # or the host reads ahead and holds all that waits to be copied
    broken = next((name for name, flags in finite.items() if not all(map(bool, flags))), "")
    return jax.make_array_from_single_device_arrays(shape.shape, sharding, [shards[device] for device in homes]), broken


def _fill_one(
    shards: dict[Any, jax.Array],
    homes: Mapping[Any, tuple[slice, ...]],
    layer: int | None,
    layers: int,
    place: Place,
    read: Callable[..., np.ndarray],
    dtype: Any,
) -> list[jax.Array]:
    """Put one tensor into the `shards` of the devices that hold some of it (layer: of a stack, None = alone); whether each is finite."""
    blocks: dict[str, np.ndarray] = {}
    finite = []
    for device, index in homes.items():
        held = range(*index[0].indices(layers)) if layer is not None else ()
        if layer is not None and layer not in held:
            continue
        inner = index if layer is None else index[1:]
        if str(inner) not in blocks:
            blocks[str(inner)] = np.ascontiguousarray(_block(place, inner, read), dtype)
        block = jax.device_put(blocks[str(inner)], device)
        finite.append(_finite(block))
        if layer is None:
            shards[device] = block
            continue
        if device not in shards:
            shards[device] = jnp.zeros((len(held), *block.shape), dtype, device=device)
        shards[device] = _put_layer(shards[device], block, layer - held[0])
    return finite


@jax.jit
def _finite(block: jax.Array) -> jax.Array:
    return jnp.isfinite(block).all()


@functools.partial(jax.jit, donate_argnums=0)
def _put_layer(stack: jax.Array, layer: jax.Array, number: Any) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(stack, layer, number, 0)


def _block(place: Place, index: tuple[slice, ...], read: Callable[..., np.ndarray]) -> np.ndarray:
    """`ours[index]` of one tensor, reading no more of the file than that where it is a simple block."""
    stored = place.stored_index(index)
    if stored is None:
        return place.ours(read(place.name))[index]
    sizes = tuple(len(range(*s.indices(n))) for s, n in zip(index, place.shape))
    return place._replace(shape=sizes).ours(read(place.name, stored))
