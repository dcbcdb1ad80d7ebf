"""The policy that RL started from: kept bit for bit where a KL term needs it, and nowhere else."""

import jax
import numpy as np
import pytest

from slca import reference
from slca.learn.optim import optimizer, schedule
from slca.learn.update import init_state
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.reference import keep_reference, load_reference
from slca.validate import ConfigError

MODEL = ModelConfig(family="qwen3", vocab=16, width=8, layers=1, heads=2, kv_heads=1, head_dim=4, ff=16, max_length=32)


class Parts:
    model = MODEL


@pytest.fixture
def state(config, monkeypatch):
    params = transformer.init(MODEL, jax.random.key(3))
    made = init_state(
        params, optimizer(config.optim, schedule("constant", 1e-3, 1, 0), transformer.logical_axes(MODEL)), jax.random.key(0)
    )
    monkeypatch.setattr(reference, "phase_like", lambda *_: made)
    return made


@pytest.mark.parametrize("field", ["loss.kl_coef", "reward.kl_coef", "train.keep_reference"])
def test_what_was_kept_comes_back(config, state, tmp_path, field):
    section, name = field.split(".")
    config[section][name] = type(config[section][name])(1)
    keep_reference(tmp_path, config, state, {})
    found = load_reference(tmp_path, config, Parts, None)
    jax.tree.map(np.testing.assert_array_equal, found, state.params)


def test_nothing_is_kept_where_nothing_needs_it(config, state, tmp_path):
    keep_reference(tmp_path, config, state, {})
    assert not any(tmp_path.iterdir()) and load_reference(tmp_path, config, Parts, None) is None


def test_one_that_is_missing_is_named(config, state, tmp_path):
    config.loss.kl_coef = 0.1
    with pytest.raises(ConfigError, match="reference is missing: the KL term needs"):
        load_reference(tmp_path, config, Parts, None)
