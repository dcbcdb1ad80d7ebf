"""Schema-constrained decoding: JSON Schemas made finite, and the token masks that keep a model inside them.

`bounded` narrows a schema until every body it allows fits a token budget, so even random weights end in valid JSON in time.
`Constraint` turns a grammar into bitmasks on the host, by llguidance (extra `grammar`); the sampler masks its logits with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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
# llguidance 1.9 ends the process where a bound, a constant or a value of an enumeration is -2**63 once it is a 64-bit integer (all
# smaller numbers are, rounding brings some larger ones there): no number below the next one that a float tells apart is handed on.
LEAST_NUMBER = -(2**63 - 1024)
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
    found = _compiled(json.dumps(schema), max_tokens)
    if isinstance(found, NoGrammar):
        raise found
    return found


@lru_cache(maxsize=4096)
def _compiled(text: str, max_tokens: int) -> str | NoGrammar:
    """A failure is remembered as well: what has no grammar has none the next time, and finding that out takes long."""
    try:
        return checked(bounded(json.loads(text), max_tokens), _LAYOUT)
    except NoGrammar as error:
        return error.with_traceback(None)
    except (ValueError, ArithmeticError) as error:  # half surrogates; integers beyond floats
        return NoGrammar(f"{type(error).__name__}: {error}"[:300])


def checked(schema: dict[str, Any], layout: Any) -> str:
    """The grammar of a schema in llguidance's form; layout: its overrides. Raises NoGrammar; ValueError for half surrogates."""
    from llguidance import LLMatcher

    if _least_number(schema) < LEAST_NUMBER:
        raise NoGrammar("a number in it is too far below 0 for 64-bit integers")
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides=layout)
    if fault := LLMatcher.validate_grammar(grammar):
        raise NoGrammar(fault[:300])
    return grammar


def _least_number(schema: Any) -> float:
    """The smallest number anywhere in a schema, 0 where none is below it."""
    least, waiting = 0.0, [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            waiting += node.values()
        elif isinstance(node, list | tuple):
            waiting += node
        elif isinstance(node, int | float):
            least = min(least, node)
    return least


def available() -> bool:
    """Whether llguidance can be imported."""
    from importlib.util import find_spec

    return find_spec("llguidance") is not None


def vocabulary(tokenizer: Tokenizer) -> Any:
    """llguidance's view of a tokenizer: the bytes of every id. Control ids are never allowed.

    Texts come from decoding behind an anchor, because many decoders drop the space of a first token. What is only a piece of a
    character (byte tokens) has no text; its bytes are read from its name, or it is never allowed either.
    """
    import llguidance

    anchor = tokenizer.encode("x")
    skipped = len(tokenizer.decode(anchor))
    hidden = set(tokenizer.control.values()) | set(tokenizer.stop_ids)
    tokens = []
    for i in range(tokenizer.size):
        text = "" if i in hidden else tokenizer.decode([*anchor, i])[skipped:]
        tokens.append(_part(tokenizer, i) if "\ufffd" in text else text.encode())
    view = _View(tokenizer, tokens, [i for i, token in enumerate(tokens) if not token])
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(view), slices=[])


def _part(tokenizer: Tokenizer, i: int) -> bytes:
    """The bytes of a token that is a piece of a character: `<0xE2>`, or byte-level letters (GPT-2's table). b"" = unknown."""
    spelled = getattr(tokenizer, "piece", lambda i: "")(i)
    if found := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", spelled):
        return bytes([int(found[1], 16)])
    table = byte_letters()
    return bytes(table[letter] for letter in spelled) if all(letter in table for letter in spelled) else b""


@lru_cache(maxsize=1)
def byte_letters() -> dict[str, int]:
    """The letter of each byte in byte-level BPE: itself where it can be seen, the others in order from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(rest)}


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
    """One row's grammar while the row is sampled (see `slca.rollout.constraint.Constraint`).

    vocabulary: see `vocabulary`. Raises ValueError where the grammar does not compile.
    """

    def __init__(self, vocabulary: Any, grammar: str):
        import llguidance

        self._size = vocabulary.vocab_size
        self._matcher = llguidance.LLMatcher(vocabulary, grammar)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error()[:300])

    def mask(self) -> Int[np.ndarray, " W"]:
        """Bit v % 32 of word v // 32 says whether token v may come next (int32, W = ceil(V / 32)); after a fault none may."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        mask = allocate_token_bitmask(1, self._size)
        if self._matcher.is_error():
            mask[:] = 0
        else:
            fill_next_token_bitmask(self._matcher, mask, 0)
        return mask[0]

    def advance(self, token: int) -> None:
        """Take the token that was sampled; a finished grammar ignores it."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(int(token))

    def stopped(self) -> bool:
        """Whether the grammar is finished: only a stop token may follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()


def unpacked(mask: Int[np.ndarray, " W"], size: int) -> Bool[np.ndarray, " V"]:
    """A bitmask as booleans."""
    bits = (mask[:, None] >> np.arange(32, dtype=np.int32)) & 1
    return bits.reshape(-1)[:size].astype(bool)
