"""Tiny checkpoints made from a recipe instead of stored: each tensor is seeded by its own name.

Shared by `make_logits.py` (needs torch and transformers, run by hand) and by the tests (need neither).
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

GOLDEN = Path(__file__).parent / "logits.npz"
_SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

# Each exercises what is its family's own: biases, q/k norms, head_dim != D/H, scaled RoPE, windows shorter than the rows.
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": _SIZES | {"model_type": "qwen2", "hidden_act": "silu", "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3": _SIZES
    | {"model_type": "qwen3", "hidden_act": "silu", "rope_theta": 1e6, "tie_word_embeddings": False, "head_dim": 16},
    "llama3": _SIZES
    | {"model_type": "llama", "hidden_act": "silu", "rope_theta": 5e5, "tie_word_embeddings": False, "head_dim": 16}
    | {"rope_scaling": _LLAMA3 | {"original_max_position_embeddings": 32}},
    "smollm2": _SIZES
    | {"model_type": "llama", "hidden_act": "silu", "rope_theta": 1e5, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}
    | {"num_attention_heads": 3, "num_key_value_heads": 1},
    "gemma3": _SIZES
    | {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16, "query_pre_attn_scalar": 24}
    | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 7, "sliding_window_pattern": 2},
}


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The values of one tensor: norm scales scattered around one, the rest normal with a spread that keeps logits lively."""
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    if name.endswith("norm.weight"):
        return 1.0 + 0.2 * noise
    return noise * (0.3 if name.endswith("bias") else 0.15)


def tokens() -> np.ndarray:
    """[2, 40] prompt rows."""
    return np.random.default_rng(7).integers(0, _SIZES["vocab_size"], (2, 40)).astype(np.int32)


def write_folder(folder: Path, name: str, shapes: dict[str, tuple[int, ...]]) -> Path:
    """A Hugging Face folder of the recipe's model `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    tensors = {key: tensor(key, shape) for key, shape in shapes.items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def golden(name: str) -> tuple[dict[str, tuple[int, ...]], np.ndarray, np.ndarray]:
    """(tensor shapes, logits [2, 40, V], greedy continuation [2, 24]) that transformers gave."""
    with np.load(GOLDEN) as file:
        shapes = json.loads(str(file[f"{name}/shapes"]))
        return {key: tuple(shape) for key, shape in shapes.items()}, file[f"{name}/logits"], file[f"{name}/greedy"]
