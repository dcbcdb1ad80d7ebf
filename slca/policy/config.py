"""Architecture of a policy, read from a Hugging Face `config.json` or made up for a random model.

One frozen record describes the five families; what differs between them is a field here and a branch nowhere else
than in `transformer.py`. Fields we would compute wrongly are refused, not ignored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

FAMILIES = ("qwen2", "qwen3", "llama", "gemma3_text")
ATTENTION = ("auto", "xla", "blockwise", "splash", "cudnn")
MOST_LAYERS = 1000  # of any model so far; more is a damaged file, and its tensors would take minutes to list
REMAT = ("none", "block", "dots")
DTYPES = ("float32", "bfloat16")
LORA_TARGETS = {"q": 1, "k": 1, "v": 1, "o": 2, "gate": 1, "up": 1, "down": 1}  # matrix -> how many of its axes are inputs

_ARCHITECTURES = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _above_zero(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


class RopeScaling(NamedTuple):
    """Change of the RoPE frequencies: `llama3` (Llama 3.1, by wavelength) or `linear` (all divided by factor)."""

    kind: str
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    @property
    def sound(self) -> bool:
        """Whether the numbers make a rule."""
        numbers = (self.factor, self.low, self.high, self.original)
        return all(map(_above_zero, numbers)) and (self.kind != "llama3" or self.low < self.high)


class Lora(NamedTuple):
    """Low-rank adapters beside the matrices `targets` (keys of LORA_TARGETS): rank r, scale alpha / r."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = tuple(LORA_TARGETS)


@dataclass(frozen=True)
class ModelConfig:
    """Everything the decoder needs, hashable so that it can be a static argument of a jitted function.

    Sizes are counts; `max_length` and `sliding_window` are tokens. `global_layers[l]` says whether layer l sees the whole
    context (Gemma 3 alternates; empty = all). `dtype`, `attention` and `remat` say how to compute, not what.
    `lora`: adapters beside frozen matrices (`slca.policy.lora`).
    """

    family: str
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float = 10_000.0  # base of the sliding layers
    max_length: int = 4096
    norm_eps: float = 1e-6
    tied: bool = True
    sliding_window: int = 0  # keys a sliding layer sees, itself included; 0 = no sliding layers
    global_layers: tuple[bool, ...] = ()
    query_scale: float = 0.0  # factor of q.k; 0 = head_dim ** -0.5
    stop_ids: tuple[int, ...] = ()  # the checkpoint's own end-of-sequence ids
    dtype: str = "float32"
    attention: str = "xla"
    remat: str = "none"
    lora: Lora | None = None

    def __post_init__(self) -> None:
        for good, message in self._checks():
            if not good:
                raise ValueError(f"model config: {message}")

    def _checks(self) -> Iterator[tuple[bool, str]]:
        """(holds, what to say if not), each worth asking only where those before it hold."""
        yield self.family in FAMILIES, f"family {self.family!r} is not one of {FAMILIES}"
        for name in ("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "ff", "max_length"):
            yield _count(getattr(self, name)), f"{name} must be positive and whole, is {getattr(self, name)!r}"
        for name in ("rope_theta", "local_rope_theta", "norm_eps"):
            yield _above_zero(getattr(self, name)), f"{name} must be a number above 0, is {getattr(self, name)!r}"
        yield self.layers <= MOST_LAYERS, f"layers must be at most {MOST_LAYERS}, is {self.layers}"
        yield self.heads % self.kv_heads == 0, f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}"
        yield self.head_dim % 2 == 0, f"head_dim {self.head_dim} is odd, RoPE turns pairs"
        yield type(self.tied) is bool, f"tied must be true or false, is {self.tied!r}"
        yield all(type(i) is int for i in self.stop_ids), f"stop_ids must be whole numbers, are {self.stop_ids!r}"
        listed = len(self.global_layers)
        yield listed in (0, self.layers), f"{listed} layer types for {self.layers} layers"
        slide = not all(self.global_layers)
        yield (
            not slide or _count(self.sliding_window),
            f"sliding layers need a window, sliding_window is {self.sliding_window!r}",
        )
        scaling = self.rope_scaling
        yield scaling is None or scaling.sound, f"no RoPE scaling has the numbers {scaling}"
        yield self.attention in ATTENTION, f"attention {self.attention!r} is not one of {ATTENTION}"
        yield self.remat in REMAT, f"remat {self.remat!r} is not one of {REMAT}"
        yield self.dtype in DTYPES, f"dtype {self.dtype!r} is not one of {DTYPES}"
        if self.lora:
            yield self.lora.rank > 0, f"the rank of adapters must be positive, is {self.lora.rank}"
            yield set(self.lora.targets) <= set(LORA_TARGETS), f"adapter targets are among {', '.join(LORA_TARGETS)}"

    @property
    def gemma(self) -> bool:
        """Gemma's own ways: (1 + w) norms around both halves of a block, GeGLU, embeddings scaled by sqrt(width)."""
        return self.family == "gemma3_text"

    @property
    def qkv_bias(self) -> bool:
        return self.family == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.family in ("qwen3", "gemma3_text")

    @property
    def scale(self) -> float:
        """Factor of the attention scores."""
        return self.query_scale or self.head_dim**-0.5

    def run_as(self, model: Any) -> ModelConfig:
        """The same architecture computed as the section `config.model` asks: dtype, attention, remat."""
        return dataclasses.replace(self, dtype=model.dtype, attention=model.attention, remat=model.remat)

    @classmethod
    def random(cls, model: Any, vocab: int) -> ModelConfig:
        """A config for random weights from the section `config.model`; `vocab` is used where `model.vocab` is 0."""
        family = {"gemma3": "gemma3_text"}.get(model.family, model.family)
        gemma = family == "gemma3_text"
        return cls(
            family=family,
            vocab=model.vocab or vocab,
            width=model.width,
            layers=model.layers,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            ff=model.ff,
            rope_theta=float(model.rope_theta),
            max_length=model.max_length,
            sliding_window=min(512, model.max_length) if gemma else 0,
            global_layers=tuple((layer + 1) % 6 == 0 for layer in range(model.layers)) if gemma else (),
        ).run_as(model)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> ModelConfig:
        """Read the dict of a Hugging Face `config.json` (both the v4 and the v5 spelling of RoPE).

        Raises:
            ValueError: an unknown family, a missing field, or a feature that this decoder does not compute.
        """
        family = hf.get("model_type")
        if family not in FAMILIES:
            hint = " (only its text part is supported: export the language model as gemma3_text)" if family == "gemma3" else ""
            raise ValueError(f"config.json: model_type {family!r} is not supported{hint}; supported: {', '.join(FAMILIES)}")
        _refuse(hf, family)
        width, heads, layers = (_need(hf, n) for n in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
        head_dim = hf.get("head_dim")
        if head_dim is None:
            head_dim = width // heads if family in ("qwen2", "llama") else _need(hf, "head_dim")
        theta, scaling, local_theta = _rope(hf, family)
        global_layers = _global_layers(hf, layers) if family == "gemma3_text" else ()
        sliding = not all(global_layers)
        eos, tied = hf.get("eos_token_id"), hf.get("tie_word_embeddings")
        return cls(
            family=family,
            vocab=_need(hf, "vocab_size"),
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=heads if hf.get("num_key_value_heads") is None else hf["num_key_value_heads"],
            head_dim=head_dim,
            ff=_need(hf, "intermediate_size"),
            rope_theta=theta,
            rope_scaling=scaling,
            local_rope_theta=local_theta,
            max_length=_need(hf, "max_position_embeddings"),
            norm_eps=_need(hf, "rms_norm_eps"),
            tied=family == "gemma3_text" if tied is None else tied,
            sliding_window=_need(hf, "sliding_window") if sliding else 0,
            global_layers=global_layers if sliding else (),
            query_scale=float(_need(hf, "query_pre_attn_scalar")) ** -0.5 if family == "gemma3_text" else 0.0,
            stop_ids=() if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,),
        )

    def to_hf(self) -> dict[str, Any]:
        """The dict of a `config.json` that `transformers` loads as this architecture."""
        hf: dict[str, Any] = {
            "model_type": self.family,
            "architectures": [_ARCHITECTURES[self.family]],
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ff,
            "max_position_embeddings": self.max_length,
            "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": self.tied,
            "rope_theta": self.rope_theta,
            "rope_scaling": _scaling_to_hf(self.rope_scaling),
            "torch_dtype": "float32",
        }
        if self.gemma:
            kinds = [("full" if wide else "sliding") + "_attention" for wide in self.global_layers or (True,) * self.layers]
            hf |= {
                "hidden_activation": "gelu_pytorch_tanh",
                "query_pre_attn_scalar": round(self.scale**-2),  # transformers takes integers only
                "sliding_window": self.sliding_window or self.max_length,
                "layer_types": kinds,
                "rope_local_base_freq": self.local_rope_theta,
            }
        else:
            hf["hidden_act"] = "silu"
        if self.stop_ids:
            hf["eos_token_id"] = self.stop_ids[0] if len(self.stop_ids) == 1 else list(self.stop_ids)
        return hf


def _need(hf: Mapping[str, Any], name: str) -> Any:
    if hf.get(name) is None:
        raise ValueError(f"config.json: field {name!r} is missing; a {hf.get('model_type')} checkpoint must state it")
    return hf[name]


def _refuse(hf: Mapping[str, Any], family: str) -> None:
    """Fields whose effect we do not compute must have the value that makes them harmless."""
    activation = hf.get("hidden_activation" if family == "gemma3_text" else "hidden_act")
    fine = {"gemma3_text": ("gelu_pytorch_tanh", None)}.get(family, ("silu", None))
    if activation not in fine:
        raise ValueError(f"config.json: activation {activation!r} is not supported for {family}, expected {fine[0]!r}")
    names = ("attention_bias", "mlp_bias", "use_sliding_window", "use_bidirectional_attention", "quantization_config")
    for name in (*names, "attn_logit_softcapping", "final_logit_softcapping"):
        if hf.get(name):
            raise ValueError(f"config.json: {name} = {hf[name]!r} is not supported for {family}")
    kinds = {"full_attention", "sliding_attention"} if family == "gemma3_text" else {"full_attention"}
    if other := set(hf.get("layer_types") or ()) - kinds:
        raise ValueError(f"config.json: layer_types holds {', '.join(map(repr, sorted(other)))}, not supported for {family}")
    for section in (hf, hf.get("rope_parameters") or {}, hf.get("rope_scaling") or {}):
        if section.get("partial_rotary_factor") not in (None, 1):
            raise ValueError(
                f"config.json: partial_rotary_factor = {section['partial_rotary_factor']!r} is not supported for {family}"
            )


def _number(value: Any) -> Any:
    """A whole number as a float; anything else as it is, for the check of the record to name."""
    return float(value) if type(value) is int else value


def _rope(hf: Mapping[str, Any], family: str) -> tuple[float, RopeScaling | None, float]:
    """(base, scaling, base of sliding layers). v5 nests all in `rope_parameters`; v4 has flat fields."""
    nested = hf.get("rope_parameters")
    if family != "gemma3_text":
        theta = nested["rope_theta"] if nested else hf.get("rope_theta", 10_000.0)
        return _number(theta), _scaling(nested or hf.get("rope_scaling")), 10_000.0
    if nested:
        wide, local = nested["full_attention"], nested["sliding_attention"]
        if _scaling(local):
            raise ValueError("config.json: scaled RoPE in sliding layers is not supported")
        return _number(wide["rope_theta"]), _scaling(wide), _number(local["rope_theta"])
    theta, local_theta = hf.get("rope_theta", 1_000_000.0), hf.get("rope_local_base_freq", 10_000.0)
    return _number(theta), _scaling(hf.get("rope_scaling")), _number(local_theta)


def _scaling(rope: Mapping[str, Any] | None) -> RopeScaling | None:
    kind = (rope or {}).get("rope_type", (rope or {}).get("type", "default"))
    if rope is None or kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", float(rope["factor"]))
    if kind == "llama3":
        missing = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"} - set(rope)
        if missing:
            raise ValueError(f"config.json: llama3 RoPE scaling lacks {', '.join(sorted(missing))}")
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return RopeScaling("llama3", float(rope["factor"]), low, high, int(rope["original_max_position_embeddings"]))
    raise ValueError(f"config.json: RoPE scaling {kind!r} is not supported; supported: default, linear, llama3")


def _scaling_to_hf(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    hf: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        hf |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        hf["original_max_position_embeddings"] = scaling.original
    return hf


def _global_layers(hf: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    if hf.get("layer_types"):
        return tuple(kind == "full_attention" for kind in hf["layer_types"])
    every = hf.get("sliding_window_pattern") or hf.get("_sliding_window_pattern") or 6
    return tuple((layer + 1) % every == 0 for layer in range(layers))
