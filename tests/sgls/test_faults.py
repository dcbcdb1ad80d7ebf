"""Seeded faults: a pure function of (prompt, call, attempt)."""

import json

import pytest

from slca.sgls import faults

HASHES = [f"{i:032x}" for i in range(4000)]


def test_faults_repeat_exactly_and_depend_on_group_call_and_attempt():
    draws = [faults.draw(0.5, faults.KINDS, "g", h) for h in HASHES]
    assert draws == [faults.draw(0.5, faults.KINDS, "g", h) for h in HASHES]
    assert draws != [faults.draw(0.5, faults.KINDS, "other", h) for h in HASHES]
    assert draws != [faults.draw(0.5, faults.KINDS, "g", h, 1) for h in HASHES]


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_rate_and_the_kinds(rate):
    draws = [faults.draw(rate, faults.KINDS, "g", h) for h in HASHES]
    hit = [kind for kind in draws if kind]
    assert abs(len(hit) / len(HASHES) - rate) < 4 * (rate * (1 - rate) / len(HASHES)) ** 0.5
    for kind in faults.KINDS:
        assert abs(hit.count(kind) / len(hit) - 1 / 6) < 0.06


def test_extremes():
    assert {faults.draw(0.0, faults.KINDS, "g", h) for h in HASHES} == {None}
    assert {faults.draw(1.0, ("429",), "g", h) for h in HASHES} == {"429"}
    assert faults.draw(1.0, (), "g", HASHES[0]) is None


def test_texts():
    for kind in ("timeout", "429", "500"):
        observation = faults.observation(kind, {})
        assert observation.status == "tool_error" and "error" in json.loads(observation.text)
        assert observation.provenance == {"source": "fault", "fault": kind}
    assert faults.observation("empty", {}).text == ""
    with pytest.raises(ValueError):
        json.loads(faults.observation("malformed", {}).text)
