"""Names and formats tell what a field means."""

import re
from random import Random

import pytest

from slca.tasks import meanings, words


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("city", "city"),
        ("homeCity", "city"),
        ("departure_date", "date"),
        ("VolumeId", "identifier"),
        ("keyARN", "identifier"),
        ("userName", "person"),
        ("emails", "email"),
        ("URL", "uri"),
        ("xyzzy", "word"),
        ("", "word"),
    ],
)
def test_kind_of_name(name, kind):
    assert meanings.kind_of_name(name) == kind


def test_every_meaning_can_be_made():
    for kind in meanings._MEANINGS:
        assert kind in words.POOLS or kind in meanings.FORMATS
    rng = Random(0)
    for form, make in meanings.FORMATS.items():
        assert make(rng, False), form


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ("uuid", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}"),
        ("date-time", r"\d{4}-\d\d-\d\dT\d\d:\d\d:00Z"),
        ("email", r"[a-z]+@[a-z]+\.example"),
        ("ipv4", r"10(\.\d{1,3}){3}"),
    ],
)
def test_formats(form, pattern):
    assert re.fullmatch(pattern, meanings.text(form, "whatever", Random(0)))


def test_format_wins_over_name_and_pools_are_formats():
    assert meanings.text("city", "email", Random(0)) in words.pool("city")
    assert meanings.text("unheard-of", "currency", Random(0)) in words.pool("currency")
    assert meanings.range_of_name("latitude") == (-60, 70)
    assert meanings.range_of_name("thing") == (1, 100)
