"""Pools in two halves, made-up words, kinds."""

import re
from random import Random

import pytest

from slca.tasks import words


def test_halves_are_disjoint_and_cover_the_pool():
    for kind in words.POOLS.keys() - words.UNSPLIT:
        train, unseen = set(words.pool(kind)), set(words.pool(kind, unseen=True))
        assert not train & unseen and train | unseen == set(words.POOLS[kind])
        assert len(unseen) >= 3
    assert words.pool("city")[:5] == ("Paris", "London", "Rome", "Berlin", "Vienna")  # the fifth, Madrid, is unseen
    assert words.pool("city", unseen=True)[0] == "Madrid"


def test_pools_have_no_duplicates_and_read_back_verbatim():
    for kind, pool in words.POOLS.items():
        assert len(set(pool)) == len(pool), kind
        assert all(re.fullmatch(r"[A-Za-z]+", word) for word in pool), kind


def test_made_up_words_are_new_and_disjoint():
    rng = Random(0)
    train = {words.made_up(rng) for _ in range(2000)}
    unseen = {words.made_up(rng, unseen=True) for _ in range(2000)}
    assert len(train) > 1500 and not train & unseen
    assert all(re.fullmatch(r"[A-Z][a-z]+", word) for word in train | unseen)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("red|blue", r"red|blue"),
        ("int 3..7", r"[3-7]"),
        ("int -20..-10", r"-(1\d|20)"),
        ("num 0.5..2", r"[0-2]\.\d"),
        ("id F", r"F\d{4}"),
        ("date", r"20(2[7-9]|3[0-5])-(0[1-9]|1[0-2])-([01]\d|2[0-8])"),
        ("time", r"([01]\d|2[0-3]):(00|15|30|45)"),
        ("dish", r"[a-z]+"),
    ],
)
def test_kinds(kind, pattern):
    rng = Random(1)
    for _ in range(100):
        assert re.fullmatch(pattern, str(words.draw(kind, rng)))


@pytest.mark.parametrize("kind", ["int 1..9999", "id F", "date", "time", "city", "errand"])
def test_training_never_draws_an_unseen_value(kind):
    rng = Random(2)
    train = {words.draw(kind, rng, False, 0.3) for _ in range(3000)}
    unseen = {words.draw(kind, rng, True, 0.3) for _ in range(3000)}
    assert not train & unseen


def test_unknown_kind():
    with pytest.raises(KeyError):
        words.draw("planet", Random(0))


def test_share_of_made_up_words():
    rng = Random(3)
    drawn = [words.draw("city", rng, False, 0.3) for _ in range(4000)]
    share = sum(word not in words.POOLS["city"] for word in drawn) / len(drawn)
    assert share == pytest.approx(0.3, abs=0.03)
    assert all(words.draw("dish", rng, False, 1.0) in words.POOLS["dish"] for _ in range(50))
