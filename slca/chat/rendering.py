"""Messages to text, exactly as `transformers` renders a chat template, and text to ids without trusting the content.

Content is data (contract 2). Before rendering, every control string inside content is broken by a *mark*, a private-use
character that occurs nowhere else; the template sees all other text unchanged, so trimming, splitting and JSON escaping work
as for `apply_chat_template`. In the rendering, control strings that are whole were written by the template: they become
control ids. Everything between loses its marks and goes through the encoder that knows no control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


def render(
    template: str,
    messages: Iterable[Any],
    tools: Iterable[Any] | None,
    variables: Mapping[str, Any],
    *,
    generation_prompt: bool = False,
) -> str:
    """The conversation as text. Raises ValueError with the template's own words when it refuses the messages."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = list(messages)
    try:
        rendered = render_jinja_template(
            conversations=[messages],
            tools=list(tools or ()) or None,
            chat_template=template,
            add_generation_prompt=generation_prompt,
            **variables,
        )
    except (TemplateError, TypeError) as error:
        roles = " ".join(str(message.get("role")) for message in messages)
        raise ValueError(f"the chat template refuses the messages ({roles}): {error}") from error
    return rendered[0][0]


def plain_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages without absent fields: templates test for the mere presence of `tool_calls`, and print None as "None"."""
    return [{k: v for k, v in message.items() if v is not None and not (k == "tool_calls" and not v)} for message in messages]


class ControlStrings:
    """The control strings of a tokenizer: breaks them in content, finds them in a rendering."""

    def __init__(self, control: Mapping[str, int]):
        words = list(control)
        either = _longest_of(words)
        self.ids = control
        self._split = re.compile(f"({either})")
        # Also overlapping ones: where any control string starts, whatever else has matched there.
        self._starts = re.compile(f"(?={either})(.)", re.DOTALL)
        # A content that ends with the first part of a control string could be completed by what the template writes next.
        self._heads = frozenset(word[:n] for word in words for n in range(1, len(word)))
        self._tails = frozenset(word[n:] for word in words for n in range(1, len(word)))
        self._longest = max(map(len, words), default=1)

    def split(self, rendering: str) -> list[str]:
        """text, control string, text, control string, ..., text."""
        return self._split.split(rendering)

    def breaks(self, text: str) -> bool:
        """Does `text` hold a control string, or begin or end with a part of one?"""
        return self._split.search(text) is not None or self._edge(text, self._tails, head=True) or self._edge(text, self._heads)

    def _edge(self, text: str, parts: frozenset[str], head: bool = False) -> bool:
        sizes = range(1, min(len(text), self._longest - 1) + 1)
        return any((text[:n] if head else text[-n:]) in parts for n in sizes)

    def broken(self, text: str, mark: str) -> str:
        """`text` with `mark` inside each control string and at an edge that is part of one."""
        marked = self._starts.sub(lambda match: match.group(1) + mark, text)
        if self._edge(text, self._tails, head=True):
            marked = mark + marked
        return marked + mark if self._edge(text, self._heads) else marked

    def mark(self, *contents: Any) -> tuple[str, tuple[Any, ...]]:
        """(mark, the contents with control strings broken). Contents: JSON-like values; keys count as content.

        The mark is "" when nothing had to be broken.
        """
        if not any(self.breaks(text) for text in _strings(contents)):
            return "", contents
        everything = set().union(*(set(text) for text in _strings(contents)))
        mark = next((chr(c) for c in chain(*_PRIVATE_USE) if chr(c) not in everything), None)
        if mark is None:
            raise ValueError(
                "the content uses every private-use character of Unicode; none is left to mark control strings with"
            )
        return mark, tuple(self._marked(content, mark) for content in contents)

    def _marked(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self.broken(value, mark)
        if isinstance(value, Mapping):
            return {self._marked(key, mark): self._marked(item, mark) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._marked(item, mark) for item in value]
        return value


def _longest_of(words: Sequence[str]) -> str:
    """A pattern for the longest of `words` that matches, as `tokenizers` picks it. A tree, since Gemma has 6,000 of them."""
    if not words:
        return r"(?!)"
    if len(words) == 1:
        return re.escape(words[0])
    branches: dict[str, list[str]] = {}
    for word in words:
        if word:
            branches.setdefault(word[0], []).append(word[1:])
    pattern = "|".join(re.escape(first) + _longest_of(rest) for first, rest in branches.items())
    return f"(?:{pattern})?" if "" in words else f"(?:{pattern})"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
