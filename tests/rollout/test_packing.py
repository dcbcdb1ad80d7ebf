"""Arguments of the sampler's programs, by hand."""

import numpy as np
import pytest

from slca.rollout.packing import append_calls, insert_calls, live_rows, padded, split, spread_calls


def test_split_takes_few_pieces_of_two_sizes():
    assert [list(piece) for piece in split(range(12), (1, 8))] == [list(range(8)), [8, 9, 10, 11]]
    assert [list(piece) for piece in split(range(11), (1, 8))] == [list(range(8)), [8], [9], [10]]


def test_padded():
    np.testing.assert_array_equal(padded([[1, 2], [3]], 3, 3), [[1, 2, 0], [3, 0, 0], [0, 0, 0]])


def test_append_calls_count_rows_within_their_shard():
    """Two shards of four slots, one row of each a call: slots 0 and 3 of the first need two calls, slot 5 goes with the first."""
    calls = append_calls({0: [7], 3: [8, 9], 5: [4, 5, 6]}, 4, 1, 4, 2)
    assert len(calls) == 2
    tokens, count, rows, last = calls[0]
    np.testing.assert_array_equal(tokens[:, 0], [[0, 0, 0, 0], [0, 4, 5, 0]])  # the first is the pending token's place
    assert count.tolist() == [[1], [3]] and rows.tolist() == [[0], [1]] and last.tolist() == [[7], [6]]
    assert calls[1][2].tolist() == [[3], [4]]  # 4: no row of the second shard


def test_insert_calls_are_one_a_chunk():
    chunk, columns = np.array([0, 1, 0]), (np.array([0, 0, 1]), np.array([5, 6, 7]), np.array([50, 60, 70]))
    calls = insert_calls(chunk, columns, np.array([2, 1, 2, 0]), np.array([3, 0, 1, 2]), 5)
    assert [number for number, _ in calls] == [0, 1]
    count, row, slot, length, last = calls[0][1]
    assert count == 3 and row.tolist() == [1, 1, 0, 0, 0] and slot.tolist() == [3, 1, 2, 0, 0]
    assert length.tolist() == [7, 7, 5, 0, 0] and last.tolist() == [70, 70, 50, 0, 0]
    assert calls[1][1][0] == 1 and calls[1][1][4][0] == 60


def test_spread_calls_make_one_copy_a_shard():
    calls = spread_calls([(0, 1), (5, 4), (0, 2)], own=3, shards=2)
    assert [(source.tolist(), place.tolist()) for source, place in calls] == [
        ([[0], [2]], [[1], [1]]),
        ([[0], [0]], [[2], [3]]),
    ]
    with pytest.raises(ValueError, match="places 2 and 3 are not of one shard"):
        spread_calls([(2, 3)], own=3, shards=2)


def test_live_rows_are_those_of_whole_places():
    active = np.zeros(16, bool)
    active[[1, 9, 10]] = True  # slot 1 of the first shard; 1 and 2 of the second
    assert live_rows(active, 2, (2, 8), 1).tolist() == [[1, 8], [1, 2]]  # 8: none
    assert live_rows(active, 2, (2, 8), 2).tolist() == [list(range(8))] * 2  # two places of the second
    active[10] = False
    assert live_rows(active, 2, (2, 8), 2).tolist() == [[0, 1], [0, 1]]
