"""The record and the rest of the config: what the record sets, and what is refused because it would train something else."""

import pytest

from configs import default
from slca.algorithm_fit import apply_record, no_room
from slca.credit.algorithms import ALGORITHMS
from slca.validate import ConfigError, validate
from tests.test_validate import refused


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_record_of_the_table_may_run(name):
    """Also once its fields are in the config, as `prepare` and `slca.aot` leave it: rebel's loss.policy is no choice of the user's."""
    config = default.get_config()
    config.credit.algorithm = name
    validate(config)
    apply_record(config)
    validate(config)


def test_a_policy_loss_that_no_record_set_is_refused():
    assert "loss.policy='terms'" in refused(loss__policy="terms")


def test_rebel_needs_room_for_a_group_in_the_rows_of_all_devices():
    """The default's longest episode has 896 tokens, so that a row of 1,024 holds one; groups are of 8."""
    config = default.get_config("rebel")
    config.train.micro_rows = 4
    record = apply_record(config)
    message = no_room(config, record, 1)
    assert (
        "train.micro_rows=4" in message
        and "4 episodes" in message
        and "rollout.group=8" in message
        and "whole group" in message
    )
    assert no_room(config, record, 2) == ""
    config.credit.algorithm = "grpo"
    assert no_room(config, apply_record(config), 1) == ""


def test_resampling_does_not_fit_credit_that_waits_for_a_probe():
    message = refused(credit__algorithm="self_conditioned", rollout__resample=2)
    assert "rollout.resample=2" in message and "self_conditioned" in message


def test_sequence_ratio_breaks_the_lock():
    assert "sequence" in refused(loss__ratio="sequence")


@pytest.mark.parametrize("name", ["gdpo", "triage@0.2", "self_conditioned", "slca+self_conditioned"])
def test_what_compares_over_the_batch_needs_one_process(name):
    config = default.get_config(name)
    validate(config)
    with pytest.raises(
        ConfigError, match=r"credit\.algorithm='.*': compares the rollouts of the whole batch, of which 2 processes"
    ):
        validate(config, processes=2)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"gdpo", "triage", "self_conditioned"}))
def test_all_others_may_run_in_several(name):
    validate(default.get_config(name), processes=2)


def test_a_norm_over_the_batch_needs_one_process_where_it_is_read():
    config = default.get_config()
    config.credit.norm = "batch_std"
    validate(config)
    with pytest.raises(ConfigError, match=r"^credit\.norm='batch_std': compares .* choose another$"):
        validate(config, processes=2)
    config.credit.algorithm = "dr_grpo"  # which only centres
    validate(config, processes=2)


@pytest.mark.parametrize(
    "name, mu, mini_batches, after",
    [("slca+llds", 1, 1, 2), ("search_sapo", 1, 1, 2), ("llds@0.1", 1, 4, 1), ("llds", 3, 1, 3), ("slca", 1, 1, 1)],
)
def test_a_term_that_is_0_at_the_old_policy_gets_a_second_sweep(name, mu, mini_batches, after):
    config = default.get_config(name)
    config.train.update(mu=mu, mini_batches=mini_batches)
    apply_record(config)
    assert config.train.mu == after


def test_a_number_of_sweeps_that_is_none_stays_a_fault():
    config = default.get_config("llds")
    config.train.mu = 0
    apply_record(config)
    with pytest.raises(ConfigError, match=r"train\.mu=0"):
        validate(config)
