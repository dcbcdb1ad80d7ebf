"""Tokenizer files that `transformers` loads, for an exported policy: tokenizer.json, its config, the chat template.

A Hugging Face tokenizer's own files are copied as they are. One from a GGUF file, and the tiny sentencepiece model, are written
as a `tokenizers` pipeline that gives the same ids (for text; where a chat template writes control tokens, `transformers`
recognises them in content as well, which ours never does).
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from slca.chat.tokenizer import FastTokenizer, SentencePieceTokenizer, Tokenizer

_COPIED = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("tokenizer.model", "chat_template.jinja", "chat_template.json"),
)
_SPACE = "▁"  # how sentencepiece spells a space
_SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")  # of the tiny model; its tags stay visible when special tokens are skipped


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Write or copy the files into `folder`. Raises ValueError for a tokenizer that is neither a pipeline nor sentencepiece."""
    source = Path(tokenizer.name)
    if (source / "tokenizer.json").is_file():
        for name in _COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        return
    if isinstance(tokenizer, FastTokenizer):
        pipeline = tokenizer.full
    elif isinstance(tokenizer, SentencePieceTokenizer):
        pipeline = from_sentencepiece(tokenizer)
    else:
        raise ValueError(f"the tokenizer {tokenizer.name!r} ({type(tokenizer).__name__}) has no form that transformers loads")
    pipeline.save(str(folder / "tokenizer.json"))
    words = {index: text for text, index in tokenizer.control.items()}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    named = {"eos_token": words.get(tokenizer.stop_ids[-1]), "pad_token": words.get(tokenizer.pad_id)} | tokenizer.variables
    settings |= {name: text for name, text in named.items() if text is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")


def from_sentencepiece(tokenizer: SentencePieceTokenizer) -> Any:
    """The tiny model as a `tokenizers` pipeline with the same ids.

    It relies on what `slca.chat.train_tokenizer` sees to: phrases are matched first, digits stand alone and no other piece mixes
    letters with anything else, so cutting there changes no merge, and no text is cut into a piece that spells a control token
    or a byte. U+2581 itself is spelled in bytes, as a space is a piece of its own.
    """
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Pipeline

    pieces = tokenizer.pieces
    names = [pieces.id_to_piece(i).replace(_SPACE, " ") for i in range(tokenizer.size)]
    vocab = {name: index for index, name in enumerate(names)}
    plain = [
        i for i in range(tokenizer.size) if not (pieces.is_control(i) or pieces.is_byte(i) or pieces.is_unknown(i))
    ]  # fmt: skip
    alone = [names[i] for i in plain if len(names[i]) > 1 and not _one_kind(names[i])] + [" ", "\n"]
    pairs = []
    for i in sorted((i for i in plain if names[i] not in alone), key=lambda i: -pieces.get_score(i)):
        splits = ((names[i][:cut], names[i][cut:]) for cut in range(1, len(names[i])))
        pairs += [(left, right) for left, right in splits if left in vocab and right in vocab]
    pipeline = Pipeline(models.BPE(vocab=vocab, merges=pairs, byte_fallback=True, ignore_merges=True))
    phrases = "|".join(re.escape(phrase) for phrase in sorted(alone, key=len, reverse=True))
    pipeline.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{phrases}|\d|\p{{L}}+"), behavior="isolated")
    pipeline.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    pipeline.add_tokens([AddedToken(text, normalized=False, special=text in _SPECIAL) for text in tokenizer.control])
    return pipeline


def _one_kind(piece: str) -> bool:
    return piece.isalpha() or not any(c.isalpha() for c in piece)
