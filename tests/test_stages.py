"""What an evaluation says in the metrics, and of a checkpoint."""

import pytest

from slca.stages import named_scores, score


def rows(*found):
    return [
        {"name": "x", "split": split, "temperature": t, "n": 2, "metrics": {"success@0.9": value, "summary": value / 2}}
        for split, t, value in found
    ]


def test_scores_are_named_by_split_and_temperature():
    assert named_scores(rows(("heldout_tasks", 0.0, 0.5), ("heldout_tools", 0.25, 1.0))) == {
        "eval/heldout_tasks/t0/success@0.9": 0.5, "eval/heldout_tasks/t0/summary": 0.25,
        "eval/heldout_tools/t0.25/success@0.9": 1.0, "eval/heldout_tools/t0.25/summary": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([("a", 0.0, 0.1), ("a", 1.0, 0.2), ("b", 0.0, 0.3), ("b", 1.0, 0.4)], 0.2),  # the first split, sampled
        ([("a", 1.0, 0.2), ("a", 0.0, 0.1)], 0.2),  # in whatever order the temperatures come
        ([("a", 0.0, 0.1)], 0.1),  # where nothing is sampled, greedy
        ([], None),  # nothing evaluated
    ],
)
def test_a_checkpoint_is_scored_by_its_first_split_at_the_highest_temperature(found, expected):
    assert score(rows(*found)) == expected


def test_what_was_not_measured_is_no_score():
    (row,) = rows(("a", 1.0, 0.5))
    del row["metrics"]["success@0.9"]
    assert score([row]) is None
