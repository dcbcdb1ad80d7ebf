"""Low-rank adapters (LoRA, arXiv 2106.09685): y = x W + (alpha / r) (x A) B with W frozen, A and B trained.

Adapters are leaves of `blocks` beside the matrix they adapt, `<name>_lora_a` [L, in.., r] and `<name>_lora_b` [L, r, out..], so
they are scanned, sharded and saved like any parameter. `ModelConfig.lora` says which there are. A starts as N(0, 1 / inputs) and
B at zero, so a fresh model computes what its base does. No dropout: sampler and trainer would disagree (unsloth-zoo#832).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt

from slca.policy.config import LORA_TARGETS, Lora, ModelConfig

A, B = "_lora_a", "_lora_b"


def with_lora(model: ModelConfig, section: Any) -> ModelConfig:
    """The architecture with the adapters of the section `config.model.lora`; as it is where the rank is 0."""
    if not section.rank:
        return model
    return dataclasses.replace(model, lora=Lora(int(section.rank), float(section.alpha), tuple(section.targets)))


def is_adapter(name: str) -> bool:
    return name.endswith((A, B))


def adapter_shapes(matrices: Mapping[str, tuple[Any, ...]], lora: Lora | None, rank: Any = None) -> dict[str, tuple[Any, ...]]:
    """Shapes of one block's adapters from those of its matrices (or logical axes from axes, with `rank` None for the new axis)."""
    found: dict[str, tuple[Any, ...]] = {}
    for name in lora.targets if lora else ():
        inputs = LORA_TARGETS[name]
        found[name + A] = (*matrices[name][:inputs], rank)
        found[name + B] = (rank, *matrices[name][inputs:])
    return found


def adapted(y: Array, x: Array, w: Mapping[str, Array], name: str, lora: Lora | None) -> Array:
    """`y` plus what the adapter of matrix `name` adds for input `x`; `y` itself where there is none."""
    if lora is None or name not in lora.targets:
        return y
    low = jnp.tensordot(x, w[name + A], LORA_TARGETS[name])
    return y + jnp.tensordot(low, w[name + B], 1) * jnp.asarray(lora.alpha / lora.rank, y.dtype)


def trainable(params: Any) -> Any:
    """The adapters of a parameter tree (or of any tree parallel to one), the whole tree where it has none."""
    blocks = params.get("blocks", {}) if isinstance(params, Mapping) else {}
    found = {name: leaf for name, leaf in blocks.items() if is_adapter(name)} if isinstance(blocks, Mapping) else {}
    return {"blocks": found} if found else params


def frozen(params: Any) -> Any:
    """What `trainable` leaves out."""
    blocks = {name: leaf for name, leaf in params["blocks"].items() if not is_adapter(name)}
    return {**params, "blocks": blocks}


def joined(base: Any, adapters: Any) -> Any:
    """The whole tree of a base and adapters; adapters that `base` holds are replaced."""
    return {**base, "blocks": {**base["blocks"], **adapters["blocks"]}}


def merged(params: Any, model: ModelConfig) -> tuple[Any, ModelConfig]:
    """(plain parameters W + (alpha / r) A B in the dtype of W, the architecture without adapters)."""
    if model.lora is None:
        return params, model
    blocks = merged_blocks(params["blocks"], model.lora)
    return {**params, "blocks": blocks}, dataclasses.replace(model, lora=None)


def merged_blocks(blocks: Mapping[str, Array], lora: Lora | None) -> dict[str, Array]:
    """`merged` for the stacked blocks alone; the product is taken in float32."""
    plain = {name: leaf for name, leaf in blocks.items() if not is_adapter(name)}
    for name in lora.targets if lora else ():
        product = jax.vmap(lambda a, b: jnp.tensordot(a.astype(jnp.float32), b.astype(jnp.float32), 1))(
            blocks[name + A], blocks[name + B]
        )
        whole = plain[name].astype(jnp.float32) + product * (lora.alpha / lora.rank)  # type: ignore[union-attr]
        plain[name] = whole.astype(plain[name].dtype)
    return plain


@jax.jit
def checksum(base: Any) -> UInt[Array, ""]:
    """Sum of the bit patterns of all numbers, modulo 2^32: the same on any mesh. Says whether adapters meet the base they belong to."""

    def bits(leaf: Array) -> Array:
        words = jnp.uint16 if leaf.dtype.itemsize == 2 else jnp.uint32
        return jnp.sum(jax.lax.bitcast_convert_type(leaf, words), dtype=jnp.uint32)

    return sum((bits(leaf) for leaf in jax.tree.leaves(base)), jnp.uint32(0))
