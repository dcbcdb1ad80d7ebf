"""Exponents: against a power law, a noisy line worked out by hand, and the axes' own sizes."""

import math

import pytest

from bench import scaling
from bench.tool_step import Shape


def test_a_power_law_gives_its_exponent():
    found = scaling.fit([1, 2, 4, 8], [3.0 * n**1.5 for n in (1, 2, 4, 8)])
    assert found.exponent == pytest.approx(1.5) and found.scale == pytest.approx(3.0)
    assert found.low == pytest.approx(1.5) and found.high == pytest.approx(1.5)


def test_the_interval_by_hand():
    """x = 0, 1, 2 and y = 0, 1, 1 in logarithms: slope 1/2, residuals -1/6, 1/3, -1/6, their squares 1/6 over one degree of
    freedom, spread of x 2: standard error sqrt(1/12), times t(0.975, 1) = 12.7062."""
    e = math.e
    found = scaling.fit([1, e, e**2], [1, e, e])
    assert found.exponent == pytest.approx(0.5)
    assert found.high - 0.5 == pytest.approx(12.7062 * math.sqrt(1 / 12), rel=1e-4)
    assert found.scale == pytest.approx(math.exp(1 / 6))


def test_what_has_no_exponent_is_refused():
    with pytest.raises(ValueError, match="two sizes"):
        scaling.fit([2, 2, 2], [1, 1, 1])
    with pytest.raises(ValueError, match="positive"):
        scaling.fit([1, 2], [0.0, 1])
    assert math.isnan(scaling.fit([1, 2], [1, 2]).low)


@pytest.mark.parametrize("name", scaling.AXES)
def test_every_axis_changes_its_size_alone(name):
    axis = scaling.AXES[name]
    cases = [axis.case(size) for size in axis.sizes]
    assert len(set(cases)) == len(cases) and set(axis.expected) == set(scaling.PHASES)
    if name == "model":
        assert {shape for _, shape in cases} == {scaling.BASE} and sorted(axis.sizes) == list(axis.sizes)
    else:
        field = {"prompt": "length"}.get(name, name)
        assert [getattr(shape, field) for _, shape in cases] == list(axis.sizes)
        assert {shape._replace(**{field: 0}) for _, shape in cases} == {scaling.BASE._replace(**{field: 0})}


def test_tokens_of_an_episode():
    """3 turns: 10 of prompt, 3 x 4 sampled, 2 x 5 of results (none after the last turn)."""
    assert Shape(2, 2, 3, 10, 4, 5).response == 22 and Shape(2, 2, 3, 10, 4, 5).row == 32
