"""Weights from a GGUF file (llama.cpp), dequantised through the `gguf` package (extra `gguf`).

Three habits of its converter are undone: query and key rows of llama models are reordered for interleaved RoPE pairs, Gemma's
norm scales have one added, and llama3 RoPE scaling is stored as a tensor of divisors in the place of its four numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from slca.policy.config import ModelConfig, RopeScaling

_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
_DIVISORS = "rope_freqs.weight"  # of the RoPE frequencies, one a pair
_LLAMA3_CONTEXT = 8192  # original context of every Llama 3


class Tensors:
    """The tensors of a GGUF file in Hugging Face orientation, dequantised one at a time when read."""

    def __init__(self, reader: Any, config: ModelConfig) -> None:
        self._tensors = {tensor.name: tensor for tensor in reader.tensors if tensor.name != _DIVISORS}
        self._config = config
        self.names: Iterable[str] = self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        from gguf.quants import dequantize

        tensor, config = self._tensors[name], self._config
        value = dequantize(tensor.data, tensor.tensor_type).reshape(self.shape(name))
        heads = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(name.split(".")[-2])
        if config.family == "llama" and heads:
            value = value.reshape(heads, config.head_dim // 2, 2, -1).swapaxes(1, 2).reshape(value.shape)
        if config.gemma and name.endswith("norm.weight"):
            value = value - 1.0
        value = value if index is None else value[index]
        # The CPU's arrays may be NumPy's own memory: a view of the file would follow what others write into it.
        return value.copy() if np.may_share_memory(value, tensor.data) else value


def open_file(path: Path) -> tuple[ModelConfig, Tensors]:
    """Architecture and tensors of a GGUF file.

    Raises:
        ValueError: the `gguf` package is absent, the file is damaged, or its architecture is not one of ours.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ValueError("reading GGUF files needs the gguf package; run `pip install gguf`") from None
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a GGUF file or is truncated ({error})") from None
    config = _config(reader, path)
    return config, Tensors(reader, config)


def _config(reader: Any, path: Path) -> ModelConfig:
    def field(key: str, default: Any = None) -> Any:
        found = reader.get_field(key)
        if found is None and default is None:
            raise ValueError(f"{path}: metadata lacks {key}")
        return default if found is None else found.contents()

    kind = field("general.architecture")
    if kind not in _FAMILIES:
        raise ValueError(f"{path}: architecture {kind!r} is not supported; supported: {', '.join(_FAMILIES)}")
    shapes = {tensor.name: [int(n) for n in tensor.shape] for tensor in reader.tensors}
    width, heads, layers = (field(f"{kind}.{name}") for name in ("embedding_length", "attention.head_count", "block_count"))
    gemma = kind == "gemma3"
    head_dim = field(f"{kind}.attention.key_length", width // heads)
    theta = float(field(f"{kind}.rope.freq_base", 10_000.0))
    turned = field(f"{kind}.rope.dimension_count", head_dim)
    if turned != head_dim:
        raise ValueError(f"{path}: RoPE over {turned} of the {head_dim} dimensions of a head is not supported")
    eos = reader.get_field("tokenizer.ggml.eos_token_id")
    return ModelConfig(
        family=_FAMILIES[kind],
        vocab=shapes["token_embd.weight"][1],
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=field(f"{kind}.attention.head_count_kv", heads),
        head_dim=head_dim,
        ff=field(f"{kind}.feed_forward_length"),
        rope_theta=theta,
        rope_scaling=_scaling(reader, field, kind, head_dim, theta, path),
        max_length=field(f"{kind}.context_length"),
        norm_eps=float(f"{field(f'{kind}.attention.layer_norm_rms_epsilon'):.6g}"),  # stored in float32
        tied="output.weight" not in shapes,
        sliding_window=field(f"{kind}.attention.sliding_window") if gemma else 0,
        global_layers=tuple((layer + 1) % 6 == 0 for layer in range(layers)) if gemma else (),
        # Not in the metadata: of Gemma 3, only the 27B scales queries by width / heads instead of head_dim.
        query_scale=(width / heads) ** -0.5 if gemma and layers == 62 else 0.0,
        stop_ids=() if eos is None else (int(eos.contents()),),
    )


def _scaling(reader: Any, field: Any, kind: str, head_dim: int, theta: float, path: Path) -> RopeScaling | None:
    stored = next((tensor for tensor in reader.tensors if tensor.name == _DIVISORS), None)
    scaling = field(f"{kind}.rope.scaling.type", "none")
    if scaling not in ("none", "linear") or (stored and scaling != "none"):
        beside = f" beside {_DIVISORS}" if stored else ""
        raise ValueError(f"{path}: RoPE scaling {scaling!r}{beside} is not supported")
    if stored is not None and stored.data.size != head_dim // 2:
        raise ValueError(f"{path}: {_DIVISORS} holds {stored.data.size} divisors, heads of {head_dim} have {head_dim // 2}")
    if stored is not None and not np.all(stored.data == 1):
        context = int(field(f"{kind}.rope.scaling.original_context_length", _LLAMA3_CONTEXT))
        return llama3(np.asarray(stored.data, np.float64).reshape(-1), theta, context, path)
    return None if scaling == "none" else RopeScaling("linear", float(field(f"{kind}.rope.scaling.factor")))


def llama3(divisors: np.ndarray, theta: float, original: int, path: Path) -> RopeScaling:
    """The llama3 rule that gives these divisors of the RoPE frequencies `theta ** -(2i / h)`, one a pair.

    The rule is a ramp over the turns that a frequency makes in the original context: not divided above `high` turns, by `factor` below
    `low`, 1 / divisor in a straight line between. The file states none of the four numbers. The greatest divisor is the factor; two
    frequencies on the ramp give low and high in turns of `original` tokens (another context scales both: the rule is the same).

    Raises:
        ValueError: no such rule gives them.
    """
    factor = float(divisors.max())
    turns = original * theta ** -(np.arange(len(divisors)) / len(divisors)) / (2 * np.pi)
    low, high = 1.0, 4.0  # of every Llama 3
    if factor > 1 and (divisors > 0).all():
        blend = (1 / divisors - 1 / factor) / (1 - 1 / factor)
        ramp = (blend > 1e-4) & (blend < 1 - 1e-4)
        if ramp.sum() > 1:
            slope, start = np.polyfit(turns[ramp], blend[ramp], 1)
            low, high = (float(f"{-start / slope + n / slope:.5g}") for n in (0, 1))  # divisors are float32
        blend = np.clip((turns - low) / (high - low), 0, 1)
        if np.allclose(1 / (blend + (1 - blend) / factor), divisors, rtol=1e-4):
            return RopeScaling("llama3", factor, low, high, original)
    raise ValueError(
        f"{path}: {_DIVISORS} divides the RoPE frequencies by no llama3 rule (factors {divisors.min():.4g} to {divisors.max():.4g}); "
        "use the Hugging Face folder of this model"
    )
