"""Weights from a GGUF file (llama.cpp), dequantised through the `gguf` package (extra `gguf`).

Two habits of its converter are undone: query and key rows of llama models are reordered for interleaved RoPE pairs, and
Gemma's norm scales have one added.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from slca.policy.config import ModelConfig, RopeScaling

_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}


class Tensors:
    """The tensors of a GGUF file in Hugging Face orientation, dequantised one at a time when read."""

    def __init__(self, reader: Any, config: ModelConfig) -> None:
        self._tensors = {tensor.name: tensor for tensor in reader.tensors if tensor.name != "rope_freqs.weight"}
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
        return value if index is None else value[index]


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
        rope_theta=float(field(f"{kind}.rope.freq_base", 10_000.0)),
        rope_scaling=_scaling(reader, field, kind, path),
        max_length=field(f"{kind}.context_length"),
        norm_eps=float(f"{field(f'{kind}.attention.layer_norm_rms_epsilon'):.6g}"),  # stored in float32
        tied="output.weight" not in shapes,
        sliding_window=field(f"{kind}.attention.sliding_window") if gemma else 0,
        global_layers=tuple((layer + 1) % 6 == 0 for layer in range(layers)) if gemma else (),
        # Not in the metadata: of Gemma 3, only the 27B scales queries by width / heads instead of head_dim.
        query_scale=(width / heads) ** -0.5 if gemma and layers == 62 else 0.0,
        stop_ids=() if eos is None else (int(eos.contents()),),
    )


def _scaling(reader: Any, field: Any, kind: str, path: Path) -> RopeScaling | None:
    if any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        raise ValueError(f"{path}: llama3 RoPE scaling is not read from GGUF; use the Hugging Face folder of this model")
    scaling = field(f"{kind}.rope.scaling.type", "none")
    if scaling == "none":
        return None
    if scaling != "linear":
        raise ValueError(f"{path}: RoPE scaling {scaling!r} is not supported")
    return RopeScaling("linear", float(field(f"{kind}.rope.scaling.factor")))
