"""Which fields a mistyped one may mean."""

import pytest

from slca.command_line import nearest

FIELDS = ("run.seed", "train.steps", "train.mini_batches", "sft.steps", "sft.lr", "optim.lr", "rollout.group", "loss.kl_coef", "reward.kl_coef")  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train.stepz", "train.steps"),  # a letter
        ("trian.steps", "train.steps"),  # the section
        ("steps", "train.steps"),  # no section
        ("rollout.lr", "optim.lr"),  # of another section
        ("grpo.kl_coef", "loss.kl_coef"),
        ("rollouts.groups", "rollout.group"),
    ],
)
def test_the_nearest_fields_are_named(typed, meant):
    found = nearest(typed, FIELDS)
    assert meant in found and len(found) <= 3


def test_what_resembles_nothing_gets_no_guess():
    assert nearest("nope", FIELDS) == [] and nearest("", FIELDS) == []


def test_the_likest_comes_first():
    for typed, meant in (("sft.stepz", "sft.steps"), ("train.step", "train.steps"), ("trian.steps", "train.steps")):
        assert nearest(typed, FIELDS)[0] == meant
