"""Where each of our parameters lies in a checkpoint: names and orientation of the Hugging Face and GGUF tensors.

A linear layer is stored [out, in]; ours is (in axes..., out axes...), so it is the transpose, reshaped. Embedding, norms and
biases keep their order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from slca.policy.config import ModelConfig
from slca.policy.transformer import block_shapes, param_shapes


class Place(NamedTuple):
    """One tensor of a checkpoint and the parameter it fills.

    param: path in our tree; layer: index in the stack or -1; shape: ours, without the layer axis; inputs: how many leading
    axes of ours are the input of a linear layer (0 = stored in our order).
    """

    name: str
    param: tuple[str, ...]
    layer: int
    shape: tuple[int, ...]
    inputs: int

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        if self.inputs:
            return math.prod(self.shape[self.inputs :]), math.prod(self.shape[: self.inputs])
        return (math.prod(self.shape),) if self.param[-1].endswith("bias") else self.shape

    def ours(self, stored: np.ndarray) -> np.ndarray:
        return (stored.T if self.inputs else stored).reshape(self.shape)

    def stored(self, ours: np.ndarray) -> np.ndarray:
        """Contiguous: a safetensors writer stores a transposed view with wrong contents, silently."""
        if self.inputs:
            ours = ours.reshape(self.stored_shape[::-1]).T
        return np.ascontiguousarray(ours.reshape(self.stored_shape))

    def stored_index(self, index: tuple[slice, ...]) -> tuple[slice, ...] | None:
        """The block of the file that holds `ours[index]`, or None where it is no simple block."""

        def merge(slices: tuple[slice, ...], sizes: tuple[int, ...]) -> slice | None:
            start, stop, _ = slices[0].indices(sizes[0])
            if any(s.indices(n) != (0, n, 1) for s, n in zip(slices[1:], sizes[1:])):
                return None
            rest = math.prod(sizes[1:])
            return slice(start * rest, stop * rest)

        n = self.inputs
        if n:
            parts = [merge(index[n:], self.shape[n:]), merge(index[:n], self.shape[:n])]
        elif self.param[-1].endswith("bias"):
            parts = [merge(index, self.shape)]
        else:
            parts = list(index)
        return None if None in parts else tuple(part for part in parts if part is not None)


_INPUTS = {"q": 1, "k": 1, "v": 1, "o": 2, "gate": 1, "up": 1, "down": 1, "head": 1}
_HF_TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
_HF_BLOCK = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_HF_GEMMA = {
    "attn_post_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}
_GGUF_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
_GGUF_BLOCK = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "attn_post_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "mlp_post_norm": "post_ffw_norm.weight",
}


def places(config: ModelConfig, wire: str = "hf") -> list[Place]:
    """Every tensor that a checkpoint of this architecture must hold; `wire` is `hf` or `gguf`."""
    if wire == "hf":
        top, block, prefix = _HF_TOP, _HF_BLOCK | (_HF_GEMMA if config.gemma else {}), "model.layers.{}."
    else:
        top, block, prefix = _GGUF_TOP, _GGUF_BLOCK, "blk.{}."
    shapes = param_shapes(config)
    found = [Place(top[n], (n,), -1, shape, _INPUTS.get(n, 0)) for n, shape in shapes.items() if n != "blocks"]
    for layer in range(config.layers):
        for name, shape in block_shapes(config).items():
            found.append(Place(prefix.format(layer) + block[name], ("blocks", name), layer, shape, _INPUTS.get(name, 0)))
    return found
