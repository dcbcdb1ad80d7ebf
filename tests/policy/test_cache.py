import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import slca
from slca.policy import attention, cache
from tests.policy.models import FAMILIES

CONFIG = FAMILIES["qwen3"]  # 2 layers, 2 KV heads of 8


def test_bytes_are_those_of_the_arrays():
    """P8: the dtype is the one asked for, whatever the parameters are."""
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        kv = cache.init(CONFIG, 3, 10, dtype)
        assert {leaf.dtype for leaf in jax.tree.leaves(kv)} == {jnp.dtype(dtype)}
        expected = 2 * 2 * 3 * 2 * 8 * 10 * size  # keys and values, layers, rows, heads, size, tokens, bytes
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(kv)) == expected == cache.nbytes(CONFIG, 3, 10, dtype)


def test_write_puts_tokens_where_told_and_drops_the_rest():
    new = np.arange(2 * 3 * 2 * 8, dtype=np.float32).reshape(2, 3, 2, 8) + 1
    layer = cache.init(CONFIG, 2, 6, "float32")[0]
    slots = jnp.array([[4, 0, 6], [2, 3, 7]])  # 6 and 7 lie outside
    layer = cache.write(layer, jnp.asarray(new), -jnp.asarray(new), slots)
    keys, values = np.asarray(layer.keys).transpose(0, 3, 1, 2), np.asarray(layer.values).transpose(0, 2, 1, 3)
    expected = np.zeros((2, 6, 2, 8), np.float32)
    expected[0, 4], expected[0, 0], expected[1, 2], expected[1, 3] = new[0, 0], new[0, 1], new[1, 0], new[1, 1]
    np.testing.assert_array_equal(keys, expected)
    np.testing.assert_array_equal(values, -expected)


def test_prefill_layout_and_gather():
    keys = np.random.default_rng(0).standard_normal((2, 3, 5, 2, 8)).astype(np.float32)
    kv = cache.from_prefill(jnp.asarray(keys), jnp.asarray(-keys), "float32")
    np.testing.assert_array_equal(kv[1].keys[2, 1, :, 4], keys[1, 2, 4, 1])
    np.testing.assert_array_equal(kv[1].values[2, 1, 4], -keys[1, 2, 4, 1])
    picked = cache.gather(kv, jnp.array([2, 0, 2]))
    np.testing.assert_array_equal(picked[0].keys, kv[0].keys[jnp.array([2, 0, 2])])


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("length", "width"), [(1, 1), (1, 2), (3, 4), (300, 2)])  # of the piece; the last goes in blocks
def test_a_shared_prompt_reads_as_the_two_caches_in_a_row(length, width, window):
    """Four rows over prompts of 0 to 7 tokens: one softmax over both parts, whose border a window may cross."""
    rng = np.random.default_rng(width + length)
    begin = np.array([7, 0, 3, 5])[: 4 // width]
    own = np.array([0, 4, 1, 9])  # tokens of each row behind its prompt, before the piece

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    prompt, kept, q = draw(2, 4 // width, 2, 7, 8), draw(2, 4, 2, 320, 8), draw(4, length, 6, 8)
    positions = (np.repeat(begin, width) + own)[:, None] + np.arange(length)[None]
    rows = [
        np.concatenate([prompt[:, row // width, :, : begin[row // width]], kept[:, row]], 2)[:, :, :320] for row in range(4)
    ]
    keys, values = np.stack(rows, 1)
    attend = jax.jit(functools.partial(attention.cached_attention, window=window, scale=0.3))
    expected = attend(q, jnp.asarray(keys.swapaxes(2, 3)), jnp.asarray(values), positions)
    shared = attention.Prompt(*(jnp.asarray(x) for x in (prompt[0].swapaxes(2, 3), prompt[1], begin)))
    kept = [jnp.asarray(x) for x in (kept[0].swapaxes(2, 3), kept[1])]
    np.testing.assert_allclose(attend(q, *kept, positions, prompt=shared), expected, atol=2e-6)


def test_no_array_starts_undefined():
    """S10: from jax 0.11 on `jnp.empty` is no longer zeros; caches and masks are made with `zeros`."""
    source = pathlib.Path(slca.__path__[0])
    assert not [
        str(file) for file in source.rglob("*.py") if re.search(r"\b(jnp|lax)\.empty", file.read_text(encoding="utf-8"))
    ]


def test_an_empty_cache_is_zero():
    assert all(not leaf.any() for leaf in jax.tree.leaves(cache.init(CONFIG, 2, 5, "float32")))
