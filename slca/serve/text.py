"""Sampled ids to text as they come: whole characters only, stop strings found wherever they cross tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from slca.chat.tokenizer import Tokenizer
from slca.serve.engine import Piece

UNKNOWN = "\ufffd"  # what decoding makes of bytes that are not (yet) a character


class Detokenizer:
    """Text of ids that come piece by piece; the pieces make the text that decoding all ids at once gives.

    Text that ends in U+FFFD waits: its bytes may be the beginning of a character. Ids are decoded behind those of the piece
    before them, since many decoders treat the first token of a text in a way of their own.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._decode = tokenizer.decode
        self._context: list[int] = []
        self._waiting: list[int] = []

    @property
    def waiting(self) -> int:
        """Ids whose text is not out yet."""
        return len(self._waiting)

    def push(self, ids: Iterable[int], *, last: bool = False) -> str:
        """The text that `ids` complete. last: nothing follows, so bytes that are no character are given as they are."""
        self._waiting += ids
        text = self._decode([*self._context, *self._waiting])[len(self._decode(self._context)) :]
        if not text or (text.endswith(UNKNOWN) and not last):
            return ""
        self._context, self._waiting = self._waiting, []
        return text


@dataclass
class Choice:
    """One answer as it grows. ids and logprobs: all that was sampled up to its end, the stop token included; text: without stop
    token, stop string and what follows it; finish: "" while it grows, then stop | length.

    stops: strings that end it, none of them empty. ends: ids that end it and say nothing. forged(text): whether `text`, which
    ends in one of `markers`, has just left the role of the assistant; that ends the answer before the marker.
    """

    tokenizer: Tokenizer
    stops: Sequence[str] = ()
    ends: frozenset[int] = frozenset()
    markers: Sequence[str] = ()
    forged: Callable[[str], bool] = lambda text: False
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    silent: int = 0  # ids at the end that are no text: the stop token
    answer: Any = None  # how the server read the finished text

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.tokenizer)
        self._longest = max(map(len, (*self.stops, *self.markers)), default=0)

    def push(self, piece: Piece) -> None:
        """Take the next piece. Where a stop string is complete, `finish` is set and later pieces are not wanted."""
        said = list(piece.ids)
        self.ids += said
        self.logprobs += piece.logprobs
        if piece.finish and said and said[-1] in self.ends:
            said.pop()
            self.silent = 1
        seen = max(0, len(self.text) - self._longest + 1)
        self.text += self._detokenizer.push(said, last=bool(piece.finish))
        self.finish = piece.finish
        if (hit := self._hit(seen)) is not None:
            self._cut(*hit)

    def _hit(self, start: int) -> tuple[int, int] | None:
        """(start, end) of the stop string or forged marker that is complete first: whatever the pieces were, the same one."""
        found = [(at + len(stop), at) for stop in self.stops if (at := self.text.find(stop, start)) >= 0]
        for marker in self.markers:
            at = self.text.find(marker, start)
            while at >= 0:
                if self.forged(self.text[: at + len(marker)]):
                    found.append((at + len(marker), at))
                    break
                at = self.text.find(marker, at + 1)
        return (min(found)[1], min(found)[0]) if found else None

    def _cut(self, start: int, end: int) -> None:
        """End before `start`; the tokens that make the text up to `end` stay counted, later ones were sampled in vain."""
        replay, length, count = Detokenizer(self.tokenizer), 0, 0
        while length < end and count < len(self.ids):
            length += len(replay.push(self.ids[count : count + 1], last=count + 1 == len(self.ids)))
            count += 1
        del self.ids[count:], self.logprobs[count:]
        self.text, self.finish, self.silent = self.text[:start], "stop", 0

    @property
    def read(self) -> int:
        """Ids whose text is complete; a stop string that comes later leaves them as they are."""
        return len(self.ids) - self._detokenizer.waiting

    def settled(self) -> str:
        """The text that nothing to come can take back: all but an end that may be the beginning of a stop string or marker."""
        return self.text if self.finish else self.text[: len(self.text) - beginning(self.text, (*self.stops, *self.markers))]


def beginning(text: str, words: Iterable[str]) -> int:
    """Length of the longest end of `text` that is the beginning, not the whole, of one of `words`."""
    sizes = (n for word in words for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n]))
    return max(sizes, default=0)
