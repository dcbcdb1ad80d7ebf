"""Schema-constrained decoding: JSON Schemas made finite, and the token masks that keep a model inside them.

`bounded` narrows a schema until every body it allows fits a token budget, so even random weights end in valid JSON in time.
`Constraint` turns grammars into bitmasks on the host, one row a reply, by llguidance (extra `grammar`); the sampler adds them to
its logits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from slca.sgls.finite import Sizes, narrowed

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from slca.chat.tokenizer import Tokenizer

_LADDER = (
    Sizes(64, 4, 6, True),
    Sizes(32, 3, 5, True),
    Sizes(16, 2, 4, True),
    Sizes(8, 1, 4, True),
    Sizes(8, 1, 8, False),
    Sizes(2, 1, 8, False),
)
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # json.dumps' own


class NoGrammar(ValueError):
    """This schema cannot be held to the budget: no body is sure to fit, or a keyword has no grammar."""


def bounded(schema: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """A narrower schema whose every body takes at most `max_tokens` tokens, the stop token included.

    A token is worth at least a byte, so bytes are what is counted. Strings, lists and optional fields shrink until it fits.
    Raises NoGrammar when even the smallest form does not.
    """
    for sizes in _LADDER:
        found = narrowed(schema, sizes)
        if found is not None and found.longest < max_tokens:
            return found.schema
    raise NoGrammar(f"no body of this schema is sure to fit {max_tokens} tokens")


def compile(schema: Mapping[str, Any], max_tokens: int) -> str:
    """The grammar of `bounded(schema, max_tokens)`, in llguidance's form. Raises NoGrammar; ImportError without llguidance."""
    return _compiled(json.dumps(schema), max_tokens)


@lru_cache(maxsize=4096)
def _compiled(text: str, max_tokens: int) -> str:
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(bounded(json.loads(text), max_tokens), overrides=_LAYOUT)
    if fault := LLMatcher.validate_grammar(grammar):
        raise NoGrammar(fault[:300])
    return grammar


def available() -> bool:
    """Whether llguidance can be imported."""
    from importlib.util import find_spec

    return find_spec("llguidance") is not None


def vocabulary(tokenizer: Tokenizer) -> Any:
    """llguidance's view of a tokenizer: the text of every id. Control ids and pieces of characters are never allowed.

    Texts come from decoding behind an anchor, because many decoders drop the space of a first token.
    """
    import llguidance

    anchor = tokenizer.encode("x")
    skipped = len(tokenizer.decode(anchor))
    hidden = set(tokenizer.control.values()) | set(tokenizer.stop_ids)
    texts = ["" if i in hidden else tokenizer.decode([*anchor, i])[skipped:] for i in range(tokenizer.size)]
    unusable = {i for i, text in enumerate(texts) if not text or "\ufffd" in text}
    view = _View(tokenizer, [b"" if i in unusable else text.encode() for i, text in enumerate(texts)], sorted(unusable))
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(view), slices=[])


class _View:
    """The attributes that llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special: list[int]):
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.stop_ids[0]
        self.special_token_ids = special
        # A special token's name must be a text that no grammar can ask for.
        self.tokens = [f"<|hidden_{i}|>".encode() if not token else token for i, token in enumerate(tokens)]

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text.decode() if isinstance(text, bytes) else text)


class Constraint:
    """The state of B grammars while their rows are sampled; a row without grammar (None) may take any token.

    vocabulary: see `vocabulary`. Raises ValueError where a grammar does not compile.
    """

    def __init__(self, vocabulary: Any, grammars: Sequence[str | None]):
        import llguidance

        self._size = vocabulary.vocab_size
        self._rows = [None if grammar is None else llguidance.LLMatcher(vocabulary, grammar) for grammar in grammars]
        for b, row in enumerate(self._rows):
            if row is not None and row.is_error():
                raise ValueError(f"row {b}: {row.get_error()[:300]}")

    def mask(self) -> Int[np.ndarray, "B W"]:
        """Bit v % 32 of word v // 32 of row b says whether token v may come next (int32, W = ceil(V / 32))."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        mask = allocate_token_bitmask(len(self._rows), self._size)
        for b, row in enumerate(self._rows):
            if row is not None:
                fill_next_token_bitmask(row, mask, b)
        return mask

    def advance(self, tokens: Int[np.ndarray, "B"]) -> None:
        """Take one token a row; rows that have stopped ignore it."""
        for row, token in zip(self._rows, tokens):
            if row is not None and not row.is_stopped():
                row.consume_token(int(token))

    def stopped(self) -> Bool[np.ndarray, "B"]:
        """Rows whose grammar is finished: only the stop token may follow."""
        return np.array([row is not None and row.is_stopped() for row in self._rows])


def unpacked(mask: Int[np.ndarray, "B W"], size: int) -> Bool[np.ndarray, "B V"]:
    """A bitmask as booleans."""
    bits = (mask[:, :, None] >> np.arange(32, dtype=np.int32)) & 1
    return bits.reshape(len(mask), -1)[:, :size].astype(bool)
