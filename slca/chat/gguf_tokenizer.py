"""The tokenizer inside a GGUF file, rebuilt as a `tokenizers` pipeline: byte-level BPE, its merges, its chat template.

`transformers` reads GGUF only where torch is installed. Formats: llama.cpp `docs/gguf.md`, key group `tokenizer.ggml`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slca.chat import gguf_metadata
from slca.chat.tokenizer import FastTokenizer

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # `tokenizer.ggml.token_type`

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# `tokenizer.ggml.pre` -> how text is cut before merging: a pattern, or None for single digits and then the GPT-2 pattern.
PATTERNS = {
    "smollm": None,
    "qwen2": _LETTERS + r"\p{N}" + _REST,
    "llama-bpe": _LETTERS + r"\p{N}{1,3}" + _REST,
}


def from_gguf(path: Path) -> FastTokenizer:
    """Raises ValueError for a damaged file, or one without a byte-level BPE vocabulary, a known `pre` rule or a chat template."""
    get = gguf_metadata.read(path, "tokenizer.").get
    kind, pre = get("tokenizer.ggml.model"), get("tokenizer.ggml.pre", "")
    if kind != "gpt2" or pre not in PATTERNS:
        known = ", ".join(PATTERNS)
        raise ValueError(f"{path}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported (gpt2 with {known})")
    template = get("tokenizer.chat_template")
    if not template:
        raise ValueError(f"{path}: holds no chat template (tokenizer.chat_template)")
    lists: list[Any] = [get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges")]
    if not all(lists):
        raise ValueError(f"{path}: holds no complete vocabulary (tokenizer.ggml.tokens, token_type and merges)")
    tokens, kinds, merges = lists
    pipeline = _pipeline(tokens, kinds, merges, pre)
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
    ids = {name: get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    variables = {name: tokens[index] for name, index in ids.items() if index is not None}
    stops = [ids["eos_token"]] if ids["eos_token"] is not None else []
    return FastTokenizer(pipeline, template, variables, name=path.name, stop_ids=stops, pad_id=ids["pad_token"])


def _pipeline(tokens: list[str], kinds: list[int], merges: list[str], pre: str) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    pipeline = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre == "llama-bpe"))
    pattern = PATTERNS[pre]
    if pattern is None:
        cut = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        cut = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(cut)
    if pre == "qwen2":
        pipeline.normalizer = normalizers.NFC()
    pipeline.decoder = decoders.ByteLevel()
    added = [(token, kind) for token, kind in zip(tokens, kinds) if kind in (CONTROL, USER_DEFINED)]
    pipeline.add_tokens([AddedToken(token, normalized=False, special=kind == CONTROL) for token, kind in added])
    return pipeline
