"""Architecture facts of the checkpoints that the configs name, as their published `config.json` states them.

Training reads the checkpoint's own file; `slca.aot` falls back on these, so that a recipe compiles before any weights are there.
"""

_QWEN = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "max_position_embeddings": 32_768}
_QWEN2 = _QWEN | {"model_type": "qwen2", "eos_token_id": 151_645}
_QWEN3 = _QWEN | {"model_type": "qwen3", "eos_token_id": 151_643, "head_dim": 128}


def _sizes(width: int, layers: int, heads: int, kv_heads: int, ff: int, vocab: int, tied: bool) -> dict:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ff,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }


ARCHITECTURES = {
    "Qwen2.5-0.5B-Instruct": _QWEN2 | _sizes(896, 24, 14, 2, 4_864, 151_936, True),
    "Qwen2.5-3B-Instruct": _QWEN2 | _sizes(2_048, 36, 16, 2, 11_008, 151_936, True),
    "Qwen2.5-7B-Instruct": _QWEN2 | _sizes(3_584, 28, 28, 4, 18_944, 152_064, False),
    "Qwen3-8B-Base": _QWEN3 | _sizes(4_096, 36, 32, 8, 12_288, 151_936, False),
}
