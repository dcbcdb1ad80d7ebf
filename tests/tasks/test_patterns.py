"""Strings drawn from regular expressions."""

import re
from random import Random

import jsonschema_rs
import pytest

from slca.tasks.patterns import generate


@pytest.mark.parametrize(
    "pattern",
    [
        r"^F[0-9]{4}$",
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        r"^arn:aws:[a-z]+:(us|eu)-\d:\w+/.+$",
        r"^(?:red|green)+$",
        r"[^/]+",
        r"^\S{3,}$",
        r"^[\w.+-]+@[a-z]+\.(com|org)$",
        r"^\D\W\s?$",
        r"^[^abc]x??$",
    ],
)
def test_matches(pattern):
    rng = Random(0)
    for _ in range(50):
        text = generate(pattern, rng)
        assert text is not None and re.search(pattern, text), text


def test_unicode_classes_of_other_engines():
    validator = jsonschema_rs.Draft202012Validator({"pattern": r"^[\p{L}\p{Z}\p{N}_.:/=+\-@]+$"})
    rng = Random(0)
    assert all(validator.is_valid(generate(r"^[\p{L}\p{Z}\p{N}_.:/=+\-@]+$", rng)) for _ in range(50))


def test_lengths():
    rng = Random(0)
    for _ in range(50):
        assert 20 <= len(generate("^[a-z]+$", rng, 20, 30) or "") <= 30
        assert len(generate("^[a-z]*$", rng, 0, 2) or "") <= 2
    assert generate("^abc$", rng, 10) is None


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "[", "(?<!x)y"])
def test_what_it_cannot_draw(pattern):
    assert generate(pattern, Random(0)) is None
