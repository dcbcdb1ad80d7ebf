"""Nonsense is refused with the field's name, before a device is touched."""

import pytest

from configs import default
from slca.validate import ConfigError, field, validate


def refused(**changes):
    config = default.get_config()
    for path, value in changes.items():
        section, name = path.split("__")
        config[section][name] = value
    with pytest.raises(ConfigError) as error:
        validate(config)
    return str(error.value)


def test_default_is_valid(config):
    validate(config)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rollout.group", 1),
        ("rollout.top_p", 0.9),
        ("rollout.top_k", 5),
        ("rollout.temperature", 0.0),
        ("rollout.prompts", 0),
        ("model.source", "no/such/folder"),
        ("chat.tokenizer", "no/such/folder"),
        ("checkpoint.init", "no/such/folder"),
        ("credit.algorithm", "slac"),
        ("credit.algorithm", "mix@much"),
        ("credit.algorithm", "slca+gspo"),
        ("credit.algorithm", "slca+rebel"),
        ("reward.efficiency", "speed"),
        ("credit.presence", "sometimes"),
        ("reward.combine", "sum"),
        ("optim.name", "sgdd"),
        ("optim.lr", 0.0),
        ("optim.warmup", 100.0),
        ("sft.warmup", 1.0),
        ("sft.noise", 1.5),
        ("train.row_lengths", ()),
        ("rollout.prompt_buckets", ("a",)),
        ("eval.temperatures", (-1.0,)),
        ("credit.eps", float("nan")),
        ("rollout.temperature", float("inf")),
        ("optim.b2", 1.0),
        ("loss.constant", -5),
        ("model.kv_heads", 0),
        ("train.mini_batches", 0),
        ("model.heads", 3),
        ("train.row_lengths", (64,)),
        ("rollout.prompt_buckets", (64,)),
        ("mesh.data", 0),
        ("model.source", "a" * 5000),
        ("model.source", ""),
        ("model.source", "tiny"),
        ("model.source", "gguf:no-such-package"),
        ("chat.tokenizer", "random"),
        ("chat.tokenizer", "gguf:no/such/file.gguf"),
        ("checkpoint.init", "random"),
        ("checkpoint.init", "tiny"),
        ("checkpoint.init", "gguf:nofile"),
        ("checkpoint.init", __file__),
        ("model.attention", "cudnn"),
        ("run.profile_step", 10_000),
        ("run.profile_step", -5),
        ("train.row_lengths", (True, 4096)),
        ("eval.temperatures", (True,)),
        ("eval.temperatures", (1.0, 1.0)),
        ("tasks.domains", (1,)),
        ("tasks.kinds", ("single", "single")),
        ("eval.splits", (None,)),
        ("eval.temperatures", (1e-300,)),
        ("rollout.temperature", 1e-300),
        ("rollout.shared_slots", -1),
        ("rollout.shared_slots", 3),  # of 128 slots
        ("rollout.shared_slots", 16),  # of a group of 8
        ("optim.eps", 0.0),
        ("loss.dual_clip", 0.5),
        ("loss.correction_cap", 0.0),
        ("loss.entropy_coef", -0.1),
        ("reward.judge_timeout", -1.0),
        ("reward.omission_penalty", 0.5),
        ("reward.summary_noise", 1e300),
        ("reward.process_weight", -1.0),
        ("reward.efficiency_cost", -0.1),
        ("credit.tool_weight", -1.0),
    ],
)
def test_each_fault_names_its_field(path, value):
    message = refused(**{path.replace(".", "__"): value})
    assert path in message


def test_nothing_waits_longer_than_the_watchdog():
    message = refused(run__watchdog_seconds=20.0)
    assert "run.watchdog_seconds=20" in message and "rollout.tool_timeout=600" in message
    judged = refused(run__watchdog_seconds=2000.0, reward__summary="judge", reward__judge_url="http://127.0.0.1:1/v1")
    assert "reward.judge_timeout=540 x (1 + reward.judge_retries=3) = 2160 s" in judged
    config = default.get_config()
    config.run.watchdog_seconds = 0.0
    validate(config)


@pytest.mark.parametrize("field", ["summary", "checker", "roles"])
def test_the_defaults_of_a_judge_fit_those_of_the_watchdog(field):
    config = default.get_config()
    config.reward[field], config.reward.judge_url, config.reward.judge_model = "judge", "http://127.0.0.1:1/v1", "judge"
    validate(config)


def test_several_processes_share_every_mini_batch():
    config = default.get_config()
    config.train.mini_batches = 4
    validate(config, processes=4)
    with pytest.raises(ConfigError, match=r"rollout\.prompts=16: 8 processes with train\.mini_batches=4 need a multiple of 32"):
        validate(config, processes=8)


def test_noise_that_is_sized_over_the_batch_needs_one_process():
    config = default.get_config()
    config.reward.summary_noise = 1.0
    validate(config)
    with pytest.raises(ConfigError, match=r"reward\.summary_noise=1: .* 2 processes hold a part each"):
        validate(config, processes=2)


@pytest.mark.parametrize("cap, good", [(0.5, False), (1.0, False), (1.5, True)])
def test_a_mask_of_sampler_weights_leaves_some(cap, good):
    """mis keeps [1 / cap, cap]: empty below 1, and at 1 nothing but a ratio of exactly 1. tis only caps."""
    config = default.get_config()
    config.loss.update(correction="tis", correction_cap=cap)
    validate(config)
    config.loss.correction = "mis"
    if good:
        validate(config)
    else:
        with pytest.raises(ConfigError, match=rf"loss\.correction_cap={cap}: mis keeps"):
            validate(config)


@pytest.mark.parametrize("folder", ["", "checkpoints"])
def test_a_start_from_a_folder_without_a_checkpoint(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    assert "checkpoint.init=" in refused(checkpoint__init=str(tmp_path))
    (tmp_path / folder / "12" / "params").mkdir(parents=True)
    config = default.get_config()
    config.checkpoint.init = str(tmp_path)
    validate(config)


def test_one_line_a_field():
    assert refused(reward__summary_noise=float("nan")).count("reward.summary_noise") == 1
    assert len(refused(rollout__group=-8).splitlines()) == 1


def test_faults_are_drawn_from_some():
    config = default.get_config()
    config.sgls.faults.update(rate=0.5, kinds=())
    with pytest.raises(ConfigError, match=r"sgls\.faults\.kinds"):
        validate(config)


def test_batch_that_does_not_divide():
    message = refused(train__mini_batches=3)
    assert "rollout.prompts=16" in message and "train.mini_batches=3" in message


def test_shared_prompts_need_packed_rows_and_an_attention_that_knows_them():
    assert "train.share_prompts=True" in (message := refused(train__share_prompts=True, train__pack=False))
    assert "set train.pack=True" in message
    assert "model.attention='splash'" in refused(train__share_prompts=True, model__attention="splash")


def test_lengths_beyond_the_model():
    assert "model.max_length=512" in refused(model__max_length=512)


@pytest.mark.parametrize(("section", "choice", "value", "url"), [("sgls", "backend", "openai", "sgls.url"), ("reward", "summary", "judge", "reward.judge_url"), ("reward", "checker", "judge", "reward.judge_url")])  # fmt: skip
def test_endpoint_without_url(section, choice, value, url):
    assert url in refused(**{f"{section}__{choice}": value})


def test_a_simulators_model_must_be_there_and_long_enough(tmp_path):
    pytest.importorskip("llguidance", reason="the extra `grammar` (llguidance) is not installed")
    assert "sgls.model=no/such/folder" in refused(sgls__backend="jax", sgls__model="no/such/folder")
    assert f"sgls.model={tmp_path}" in refused(sgls__backend="jax", sgls__model=str(tmp_path))
    assert "is beyond model.max_length=4096" in refused(sgls__backend="jax")
    config = default.get_config()
    config.sgls.update(backend="jax", max_tokens=1024, max_prompt_tokens=2048)
    validate(config)


def test_grammars_need_their_extra(monkeypatch):
    monkeypatch.setattr("slca.sgls.grammar.available", lambda: False)
    assert "slca[grammar]" in refused(sgls__backend="jax", sgls__max_tokens=64, sgls__max_prompt_tokens=64)


def test_missing_weights_are_said_in_one_line_with_the_remedy():
    message = refused(model__source="models/Qwen2.5-7B-Instruct")
    assert "\n" not in message
    assert "hf download Qwen/Qwen2.5-7B-Instruct --local-dir models/Qwen2.5-7B-Instruct" in message


def test_a_folder_without_weights(tmp_path):
    assert "safetensors" in refused(model__source=str(tmp_path))


def test_all_faults_come_at_once():
    lines = refused(rollout__group=1, optim__lr=-1.0).splitlines()
    assert len(lines) == 2


def test_field_walks_a_path(config):
    assert field(config, "sgls.faults.rate") == 0.0


def test_adapters_of_a_matrix_are_named_once():
    config = default.get_config()
    config.model.lora.rank, config.model.lora.targets = 4, ("q", "q")  # merged, they would count twice
    with pytest.raises(ConfigError, match=r"model\.lora\.targets=.*once"):
        validate(config)
