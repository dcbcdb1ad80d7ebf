import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca.learn.rows import bucket, collect, fill, first_fit_decreasing, layout, padded, shortest


def test_first_fit_decreasing_by_hand():
    row, start, used = first_fit_decreasing([3, 7, 5, 2, 4], 10)
    # 7 | 5 | 4 -> with 5 | 3 -> with 7 | 2 -> needs a third row: 7+3 and 5+4 leave 0 and 1
    assert used == 3
    assert row.tolist() == [0, 0, 1, 2, 1]
    assert start.tolist() == [7, 0, 0, 0, 5]


def test_too_long_names_the_episode():
    with pytest.raises(ValueError, match="episode 1 has 11 tokens, a packed row holds 10"):
        first_fit_decreasing([3, 11], 10)


@pytest.mark.parametrize("longest, expected", [(0, 40), (40, 40), (41, 80)])
def test_shortest(longest, expected):
    assert shortest((80, 40), longest) == expected


def test_shortest_says_what_to_do():
    with pytest.raises(ValueError, match="add a longer one"):
        shortest((40, 80), 81)


@pytest.mark.parametrize("rows, expected", [(0, 4), (1, 4), (4, 4), (5, 8), (8, 8), (9, 16), (17, 32)])
def test_bucket_is_a_power_of_two_of_units(rows, expected):
    assert bucket(rows, 4) == expected


def test_empty_rows_gather_in_the_last_micro_batches():
    place = padded(layout([10] * 5, 10), 8, 2)  # 5 full rows, micro-batch m = rows m::4
    live = np.isin(np.arange(8), place.row).reshape(2, 4)
    assert live.sum(0).tolist() == [2, 2, 1, 0]


def test_padded_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="5 packed rows do not fit 4 rows"):
        padded(layout([10] * 5, 10), 4, 2)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 16), max_size=20), st.booleans(), st.integers(1, 3))
def test_round_trip_is_exact(lengths, packed, unit):  # M11
    pieces = [np.random.default_rng(n).integers(1, 99, length) for n, length in enumerate(lengths)]
    place = layout(lengths, 16, packed=packed)
    place = padded(place, bucket(place.rows, unit), unit)
    array = fill(place, pieces, 0, np.int32)
    assert (array > 0).sum() == sum(lengths)  # nothing overlaps
    for got, expected in zip(collect(place, array), pieces, strict=True):
        np.testing.assert_array_equal(got, expected)
