"""The table of the whole config offers what the rooms take: they name their choices themselves, for use without a config."""

import pytest

from slca import bounds
from slca.credit import credit, segments
from slca.learn import batch, optim
from slca.rewards import hierr, scores
from slca.rollout import programs

OWN = {
    **{f"reward.{name}": taken for name, taken in hierr.CHOICES.items()},
    "reward.execution": scores.EXECUTION,
    "reward.efficiency": scores.EFFICIENCY,
    "credit.norm": credit.NORMS,
    "credit.presence": credit.PRESENCE,
    "credit.segmenter": segments.SEGMENTERS,
    "loss.aggregation": batch.AGGREGATIONS,
    "optim.name": optim.OPTIMIZERS,
    "optim.schedule": optim.SCHEDULES,
    "sft.optimizer": optim.OPTIMIZERS,
    "sft.schedule": optim.SCHEDULES,
}


@pytest.mark.parametrize("path", OWN)
def test_a_config_may_say_what_the_room_takes(path):
    assert bounds.CHOICES[path] == tuple(OWN[path])


def test_training_takes_no_temperature_that_sampling_counts_as_zero():
    assert bounds.RANGES["rollout.temperature"][0] == programs.LEAST_TEMPERATURE


def test_no_field_must_be_positive_and_may_be_zero():
    assert not set(bounds.POSITIVE) & set(bounds.NOT_NEGATIVE)
