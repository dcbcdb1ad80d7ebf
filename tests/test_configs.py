"""Every shipped config builds, is valid but for the files and packages it needs, and takes every variant."""

import importlib
from pathlib import Path

import pytest

from configs import default
from slca.learn.optim import schedule
from slca.validate import ConfigError, validate

FILES = sorted(p.stem for p in (Path(default.__file__).parent).glob("*.py") if p.stem not in ("__init__", "default"))


def load(name, arg=None):
    module = importlib.import_module(f"configs.{name}")
    return module.get_config() if arg is None else module.get_config(arg)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("arg", [None, *default.ALGORITHM_ARGS])
def test_only_files_and_packages_may_be_missing(name, arg):
    config = load(name, arg)
    try:
        validate(config)
    except ConfigError as error:
        missing = ("no such folder", "is not installed; run `pip install")
        assert all(any(words in line for words in missing) for line in str(error).splitlines()), error


@pytest.mark.parametrize("name", FILES)
def test_no_field_outside_the_default(name):
    """A config may change fields, not add them: every field has its remark in configs/default.py."""

    def paths(section, prefix=""):
        for key, value in section.items():
            yield from paths(value, f"{prefix}{key}.") if hasattr(value, "items") else [prefix + key]

    assert set(paths(load(name))) == set(paths(default.get_config()))


def test_every_field_has_a_remark():
    lines = Path(default.__file__).read_text().split("return select")[0].splitlines()
    bare = [
        line for line in lines if line.startswith("    ") and " = " in line and "ConfigDict()" not in line and "#" not in line
    ]
    assert bare == []


def test_paper_variant_sets_every_published_behaviour():
    config = load("7b", "slca_paper")
    assert config.credit.segmenter == "position"
    assert config.reward.judge_failure == "zero"
    assert config.reward.combine == "additive"
    assert config.reward.blocks == "tag"
    assert (config.sgls.mode, config.sgls.cache, config.sgls.state) == ("paper", "none", "none")


def test_7b_is_the_papers_recipe():
    config = load("7b")
    assert (config.rollout.group, config.rollout.prompts, config.train.mini_batches) == (16, 128, 4)
    assert (config.optim.lr, config.loss.kl_coef, config.loss.kl) == (1e-6, 0.001, "k3")
    assert config.train.steps == 31_818 // 128


@pytest.mark.parametrize("name", FILES)
def test_learning_rate_at_its_landmarks(name):
    """M26: the schedule is sized by this run's steps."""
    config = load(name)
    steps = config.train.steps * config.train.mu * config.train.mini_batches
    if steps:
        rate = schedule(config.optim.schedule, config.optim.lr, steps, config.optim.warmup)
        assert max(float(rate(s)) for s in range(steps)) == pytest.approx(config.optim.lr, rel=1e-6)
    if config.sft.steps:
        rate = schedule(config.sft.schedule, config.sft.lr, config.sft.steps, config.sft.warmup)
        peak = max(float(rate(s)) for s in range(config.sft.steps))
        assert peak == pytest.approx(config.sft.lr, rel=1e-2)
        assert float(rate(config.sft.steps)) == pytest.approx(0.0, abs=config.sft.lr * 1e-3)
