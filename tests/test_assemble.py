"""What the parts refuse of each other, in one line that names the field."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from configs import tiny
from slca.assemble import assemble, base_params, check_attention, make_sampler
from slca.learn.sharding import make_mesh
from slca.policy.config import ModelConfig
from slca.validate import ConfigError


@pytest.fixture
def config():
    c = tiny.get_config()
    c.model.update(width=32, layers=1, heads=2, kv_heads=1, head_dim=64, ff=64)
    return c


def test_a_vocabulary_smaller_than_the_tokenizers(config):
    """Ids beyond it would read past the embedding: the loss is NaN."""
    config.model.vocab = 100
    with pytest.raises(ConfigError, match=r"model\.vocab=100: chat\.tokenizer has 1280 ids"):
        assemble(config)


@pytest.mark.parametrize("kind, needs", [("splash", "needs a TPU"), ("cudnn", "needs an NVIDIA GPU")])
def test_an_attention_of_other_hardware(config, kind, needs):
    config.model.attention, config.train.share_prompts = kind, False
    with pytest.raises(ConfigError, match=rf"model\.attention='{kind}' {needs}"):
        assemble(config)


def test_a_process_of_several_that_joined_none(config, monkeypatch):
    """On a TPU VM slice the devices know of all hosts whether or not the run does."""
    monkeypatch.setattr("slca.assemble.jax.process_count", lambda: 16)
    with pytest.raises(ConfigError, match=r"belong to 16 processes.*SLCA_DISTRIBUTED=1 on every host.*--coordinator"):
        assemble(config)


def test_splash_takes_rows_and_prompts_of_whole_blocks(config):
    model = ModelConfig.random(config.model, 1280)
    config.model.attention = "splash"
    config.train.row_lengths, config.rollout.prompt_buckets, config.sft.steps = (256, 512), (128,), 0
    check_attention(config, model, "tpu")
    config.rollout.prompt_buckets = (100, 128)
    with pytest.raises(ConfigError, match="here: tpu, 100 tokens"):
        check_attention(config, model, "tpu")


def test_prompts_are_checked_as_long_as_the_sampler_runs_them(config):
    """A bucket longer than a slot is cut to it: 256 + 64 tokens are no multiple of splash's 128."""
    model = ModelConfig.random(config.model, 1280)
    config.model.attention, config.train.row_lengths, config.sft.steps = "splash", (256,), 0
    config.rollout.update(max_prompt_tokens=256, max_response_tokens=64, prompt_buckets=(256, 512))
    with pytest.raises(ConfigError, match="here: tpu, 320 tokens"):
        check_attention(config, model, "tpu")


def test_slots_are_as_many_as_the_shards_of_rows_can_share(config):
    """3 x 4 episodes over eight shards: two slots each."""
    config.rollout.update(prompts=3, group=4)
    mesh = make_mesh(config.mesh)
    model = ModelConfig.random(config.model, 1280)
    assert mesh.size == 8 and make_sampler(config, model, mesh).slots == 16
    assert make_sampler(config, model, None).slots == 12


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/3"])
def test_a_run_is_known_by_its_workdir_its_checkpoints_or_a_step(config, tmp_path, place):
    """What is read there is the run's own record, here an empty one; nobody asks for a model's config.json."""
    (tmp_path / "checkpoints" / "3" / "params").mkdir(parents=True)
    config.checkpoint.init = str(tmp_path / place)
    with pytest.raises(ConfigError) as error:
        base_params(config, ModelConfig.random(config.model, 1280), None)
    assert str(tmp_path / "checkpoints" / "3") in str(error.value) and "config.json" not in str(error.value)


def test_weights_that_cannot_be_read(config, tmp_path):
    """A truncated file: the message of the reader, as a fault of the config."""
    model = ModelConfig.random(config.model, 1280)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    save_file({"x": np.zeros((64, 64), np.float32)}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:100])
    config.checkpoint.init = str(tmp_path)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        base_params(config, model, None)
