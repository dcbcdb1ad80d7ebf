"""Options: the config's own fields and defaults, and what is refused."""

from dataclasses import asdict, fields

import pytest

from slca.sgls.options import Options


def test_fields_and_defaults_are_the_configs(config):
    section = config.sgls.to_dict()
    assert section.pop("backend") == "scripted" and section.pop("faults")["rate"] == Options().fault_rate == 0.0
    assert section == {name: value for name, value in asdict(Options()).items() if name != "faults"}
    assert Options(faults=config.sgls.faults).fault_kinds == Options().fault_kinds


@pytest.mark.parametrize(
    "options, words",
    [
        ({"mode": "fast"}, "sgls.mode='fast': one of safe, paper"),
        ({"cache": "some"}, "sgls.cache"),
        ({"state": "sql"}, "sgls.state"),
        ({"validate": "off"}, "sgls.validate"),
        ({"max_chars": 10}, "sgls.max_chars=10: at least 64"),
        ({"regenerations": -1}, "sgls.regenerations"),
        ({"concurrency": 0}, "sgls.concurrency"),
        ({"timeout": 0}, "sgls.timeout"),
        ({"faults": {"rate": 2}}, "sgls.faults.rate"),
        ({"faults": {"kinds": ["503"]}}, "sgls.faults.kinds: unknown .'503'."),
        ({"state": "kv", "response_check": False}, "sgls.response_check"),
        ({"faults": {"kinds": "429"}}, "sgls.faults.kinds='429': a list"),
        ({"faults": {"kinds": [["429"]]}}, "sgls.faults.kinds: unknown"),
        ({"faults": {"rate": None}}, "sgls.faults.rate=None: a finite number"),
        ({"faults": {"rate": "0.5"}}, "sgls.faults.rate='0.5'"),
        ({"faults": {"rat": 0.5}}, "sgls.faults: unknown fields .'rat'."),
    ],
)
def test_nonsense_is_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        Options(**options)


WRONG = {"str": [None, 3, b"x"], "bool": [None, "no", 2], "int": [None, "3", 2.5, True, float("nan")], "float": [None, "1", float("nan"), float("inf"), True]}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(Options)])
def test_a_value_of_another_type_is_refused_by_name(name):
    kind = next(field.type for field in fields(Options) if field.name == name)
    for value in WRONG.get(kind, [3, "x", [1]]):
        with pytest.raises(ValueError, match=f"sgls.{name}="):
            Options(**{name: value})


def test_unknown_fields_are_refused():
    with pytest.raises(TypeError, match="retires"):
        Options(retires=3)


def test_paper_switches_extras_off_and_keeps_the_numbers():
    paper = Options(
        mode="paper", cache="global", state="kv", store="x.db", faults={"rate": 1.0}, timeout=7.0, max_chars=100
    ).effective()
    assert (paper.validate, paper.cache, paper.state, paper.store) == ("required", "none", "none", "")
    assert not paper.response_check and paper.fault_rate == 0 and (paper.timeout, paper.max_chars) == (7.0, 100)
    assert Options(cache="none").effective() == Options(cache="none")
