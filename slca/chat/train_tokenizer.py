"""Train the tiny sentencepiece tokenizer from the task generator's own text.

    python -m slca.chat.train_tokenizer            # writes slca/chat/tiny.model, deterministic

White space, digits and control symbols stand alone and no piece mixes letters with punctuation (bar the JSON phrases below,
which no question contains), so `Paris` has the same ids after a space and after a quote. That is what lets a tiny policy
copy words from a question into a call. Bytes cover whatever the vocabulary does not.
"""

from __future__ import annotations

import io
import os
import re
import string
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

VOCAB = 1280  # pieces: 1 pad, 1 unk, 10 control, 256 bytes, phrases, characters, merges
TASKS = 4000  # tasks read
PAD = "<|pad|>"
CONTROL = (
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<think>",
    "</think>",
)
# Phrases of compact JSON Schema and of calls, one id each: they carry no word a policy would have to copy.
PHRASES = (
    *(
        f'":{{"type":"{kind}"{after}'
        for kind in ("string", "integer", "number", "boolean")
        for after in ("", '},"', '}},"required":["')
    ),
    '{"name":"',
    '","description":"',
    '"description":"',
    '","parameters":{"type":"object","properties":{"',
    '"parameters":{"type":"object","properties":{',
    '","arguments":{"',
    '","arguments":{',
    '":{"type":"array","items":{"type":"string"}',
    '":{"type":"array","items":',
    '":{"type":"object","properties":{"',
    '},"required":["',
    '"],"additionalProperties":',
    ',"additionalProperties":',
    ',"enum":["',
    ',"default":',
    ',"minimum":',
    ',"maximum":',
    ',"format":"',
)


def train(texts: Iterable[str], vocab: int = VOCAB) -> bytes:
    """A serialised sentencepiece BPE model. The same texts give the same bytes."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab,
        hard_vocab_limit=False,
        byte_fallback=True,
        character_coverage=0.9995,
        required_chars="".join(c for c in string.printable if c.isprintable() and c != " "),
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        max_sentence_length=65536,
        user_defined_symbols=["▁", "\n", *PHRASES],
        control_symbols=list(CONTROL),
        pad_id=0,
        pad_piece=PAD,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def texts(tasks: Iterable[Any]) -> Iterator[str]:
    """The text between control symbols of each task, rendered with its demonstration by the tiny template."""
    from slca.chat.rendering import render
    from slca.chat.tokenizer import TINY_TEMPLATE
    from slca.tasks.schema import public_specs

    template = TINY_TEMPLATE.read_text(encoding="utf-8")
    cut = re.compile("|".join(map(re.escape, CONTROL)))
    for task in tasks:
        rendered = render(template, [*task.messages, *task.demo], public_specs(task.tools), {})
        yield from (piece for piece in cut.split(rendered) if piece.strip())


def main() -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would say that PyTorch is missing, which is as it should be
    from slca.chat.tokenizer import TINY_MODEL
    from slca.tasks.synthesize import tasks

    model = train(texts(islice(tasks(seed=0, split="train"), TASKS)))
    TINY_MODEL.write_bytes(model)
    print(f"{TINY_MODEL}: {len(model):,} bytes")


if __name__ == "__main__":
    main()
