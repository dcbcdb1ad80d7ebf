"""What a field means, told by its `format` or its name, and a believable text or range for that."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from random import Random

from slca.tasks import words


def text(form: str, name: str, rng: Random, unseen: bool = False, made_up: float = 0.0) -> str:
    """A text for a field. form: a JSON Schema `format`, or a pool of `words`; where it says nothing, the name decides."""
    kind = form if form in words.POOLS or form in FORMATS else kind_of_name(name)
    if kind in FORMATS:
        return FORMATS[kind](rng, unseen)
    return words.word(kind, rng, unseen, made_up)


def is_identifier(name: str) -> bool:
    """Whether a field of this name holds an identifier: `VolumeId`, `key_arn`, `uuid`."""
    return kind_of_name(name) in ("identifier", "uuid")


@lru_cache(maxsize=8192)
def kind_of_name(name: str) -> str:
    """A pool or format for a field name, by its last telling part: `homeCity` -> "city"."""
    for part in reversed(_parts(name)):
        kind = _KINDS.get(part) or _KINDS.get(part.removesuffix("s"))
        if kind:
            return kind
    return "word"


@lru_cache(maxsize=8192)
def range_of_name(name: str) -> tuple[int, int]:
    """Believable bounds of a number in a field of this name."""
    for part in reversed(_parts(name)):
        if part in _RANGES:
            return _RANGES[part]
    return (1, 100)


def _parts(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _word(rng: Random, unseen: bool) -> str:
    return words.word("word", rng, unseen)


def _hex(rng: Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


FORMATS: dict[str, Callable[[Random, bool], str]] = {
    "date": words.date,
    "clock": words.clock,
    "time": lambda rng, unseen: f"{words.clock(rng, unseen)}:00Z",
    "date-time": lambda rng, unseen: f"{words.date(rng, unseen)}T{words.clock(rng, unseen)}:00Z",
    "duration": lambda rng, unseen: f"PT{rng.randint(1, 90)}M",
    "email": lambda rng, unseen: f"{words.word('person', rng, unseen).lower()}@{_word(rng, unseen)}.example",
    "uuid": lambda rng, unseen: f"{_hex(rng, 8)}-{_hex(rng, 4)}-4{_hex(rng, 3)}-8{_hex(rng, 3)}-{_hex(rng, 12)}",
    "uri": lambda rng, unseen: f"https://{_word(rng, unseen)}.example/{rng.randint(100, 999)}",
    "hostname": lambda rng, unseen: f"{_word(rng, unseen)}.example",
    "ipv4": lambda rng, unseen: f"10.{rng.randint(0, 255)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}",
    "ipv6": lambda rng, unseen: f"fd00::{_hex(rng, 4)}",
    "byte": lambda rng, unseen: "c2xjYQ==",
    "identifier": lambda rng, unseen: f"{_word(rng, unseen)[:3].upper()}{rng.randint(1000, 9999)}",
    "phone": lambda rng, unseen: f"+1555{rng.randint(1_000_000, 9_999_999)}",
    "sentence": lambda rng, unseen: (
        f"{_word(rng, unseen)} {words.word('errand', rng, unseen)} {words.word('topic', rng, unseen)}"
    ),
}
_MEANINGS = {
    "city": "city town location origin destination place capital",
    "country": "country nation",
    "currency": "currency",
    "language": "language lang",
    "email": "email mail",
    "phone": "phone mobile fax",
    "uri": "url uri link website endpoint href",
    "date": "date day birthday deadline",
    "clock": "time at",
    "date-time": "timestamp datetime created updated modified",
    "identifier": "id arn key code token reference number identifier sku",
    "uuid": "uuid guid",
    "ipv4": "ip",
    "hostname": "host hostname domain",
    "song": "song track album",
    "dish": "dish meal food recipe",
    "product": "product item goods",
    "topic": "topic subject category genre tag",
    "company": "company ticker symbol",
    "street": "street address",
    "sentence": "text message body content description summary comment note notes title",
    "person": "person user author owner customer guest passenger sender recipient contact employee doctor manager name firstname "
    "lastname username",
}
_KINDS = {part: kind for kind, parts in _MEANINGS.items() for part in parts.split()}
_RANGES = {
    "price": (1, 900), "cost": (1, 900), "amount": (1, 900), "total": (1, 900), "balance": (1, 9000), "temperature": (-15, 38), "temp": (-15, 38),
    "percent": (0, 100), "percentage": (0, 100), "rating": (1, 5), "score": (1, 100), "year": (1990, 2035), "month": (1, 12), "day": (1, 28),
    "hour": (0, 23), "hours": (1, 24), "minute": (0, 59), "minutes": (1, 90), "latitude": (-60, 70), "longitude": (-180, 180), "age": (18, 90),
    "page": (1, 9), "limit": (1, 50), "size": (1, 50),
}  # fmt: skip
