"""The tokenizer inside a GGUF file, rebuilt as a `tokenizers` pipeline: byte-level BPE with its merges, or a sentencepiece BPE
(Gemma) whose merges follow from its scores; and its chat template.

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


def from_gguf(path: Path, chat_template: str = "") -> FastTokenizer:
    """chat_template: in the place of the file's own. Raises ValueError for a damaged file, or one without a BPE vocabulary, a known `pre` rule or a chat template."""
    get = gguf_metadata.read(path, "tokenizer.").get
    template = chat_template or get("tokenizer.chat_template")
    if not template:
        raise ValueError(f"{path}: holds no chat template (tokenizer.chat_template); name one in chat.template")
    tokens = get("tokenizer.ggml.tokens", [])
    pipeline = make_pipeline(get, path)
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
    ids = {name: get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    variables = {name: tokens[index] for name, index in ids.items() if index is not None}
    stops = [ids["eos_token"]] if ids["eos_token"] is not None else []
    return FastTokenizer(pipeline, template, variables, name=path.name, stop_ids=stops, pad_id=ids["pad_token"])


def make_pipeline(get: Any, path: Path) -> Any:
    """The pipeline of metadata `get(key)`, control tokens included. Raises ValueError as `from_gguf` does."""
    kind, pre = get("tokenizer.ggml.model"), get("tokenizer.ggml.pre", "")
    spaced = get("tokenizer.ggml.add_space_prefix") is not False
    if (kind != "gpt2" or pre not in PATTERNS) and (kind != "llama" or spaced):
        known = f"gpt2 with {', '.join(PATTERNS)}, and llama without a space in front"
        raise ValueError(f"{path}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported ({known})")
    needed = ("tokens", "token_type", "scores" if kind == "llama" else "merges")
    lists: list[Any] = [get(f"tokenizer.ggml.{key}") for key in needed]
    if not all(lists):
        raise ValueError(f"{path}: holds no complete vocabulary (tokenizer.ggml.{', '.join(needed)})")
    tokens, kinds, order = lists
    if kind == "llama":  # the converter writes spaces as they are in tokens that sentencepiece matches first
        tokens = [token.replace(" ", "▁") for token in tokens]
    pipeline = _sentencepiece(tokens, kinds, order) if kind == "llama" else _byte_level(tokens, order, pre)
    from tokenizers import AddedToken

    # Runs of spaces are matched in the normalised text, as sentencepiece does.
    added = [(token, kind) for token, kind in zip(tokens, kinds) if kind in (CONTROL, USER_DEFINED)]
    pipeline.add_tokens([AddedToken(token, normalized="▁" in token, special=kind == CONTROL) for token, kind in added])
    return pipeline


def _byte_level(tokens: list[str], merges: list[str], pre: str) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

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
    return pipeline


def _sentencepiece(tokens: list[str], kinds: list[int], scores: list[float]) -> Any:
    """Sentencepiece joins the neighbours whose union scores best, so every cut of a piece into two others is a merge of its rank."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocab = {token: index for index, token in enumerate(tokens)}
    normal = sorted((i for i, kind in enumerate(kinds) if kind == NORMAL), key=lambda i: -scores[i])
    cuts = ((tokens[i][:n], tokens[i][n:]) for i in normal for n in range(1, len(tokens[i])))
    merges = [(left, right) for left, right in cuts if left in vocab and right in vocab]
    pipeline = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True))
    pipeline.normalizer = normalizers.Replace(" ", "▁")
    pipeline.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return pipeline
