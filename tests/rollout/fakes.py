"""A character-level tokenizer and template, and a sampler whose "policy" is a script: no model, exact by construction."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

CONTROL = {"<pad>": 0, "<|im_end|>": 1, "<|im_start|>": 2, "<tool_response>": 3, "</tool_response>": 4}
FIRST = 5  # id of character 0


class Tokenizer:
    """ASCII characters; what is not one becomes '?'. Control ids decode to their text and are never encoded."""

    control = CONTROL
    stop_ids = (1,)
    pad_id = 0
    size = FIRST + 128

    def encode(self, text: str) -> list[int]:
        return [FIRST + (ord(c) if ord(c) < 128 else ord("?")) for c in text]

    def decode(self, ids) -> str:
        names = {i: name for name, i in CONTROL.items()}
        return "".join(names.get(i) or chr(i - FIRST) for i in map(int, ids))


class Template:
    """<|im_start|>role newline content <|im_end|> newline; the tools are not shown."""

    tokenizer = Tokenizer()
    stop_ids = (1,)
    environment_markers = ("<tool_response>", "</tool_response>", "<|im_start|>")

    def prompt(self, messages, tools) -> list[int]:
        return [i for message in messages for i in self._message(message)] + self._open()

    def suffix(self, messages, new) -> list[int]:
        return self.tokenizer.encode("\n") + [i for message in new for i in self._message(message)] + self._open()

    def _message(self, message) -> list[int]:
        encode = self.tokenizer.encode
        return [2, *encode(message["role"] + "\n" + message["content"]), 1, *encode("\n")]

    def _open(self) -> list[int]:
        return [2, *self.tokenizer.encode("assistant\n")]
