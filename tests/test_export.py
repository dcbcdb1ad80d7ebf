import dataclasses
import json

import jax
import numpy as np
import optax
import pytest
from transformers import AutoConfig, AutoTokenizer

from configs.default import get_config
from slca import export
from slca.checkpoint import Checkpoints
from slca.learn.update import init_state
from slca.policy import transformer, weights
from slca.policy.config import ModelConfig
from slca.restore import policy_of

FAMILIES = ("qwen2", "qwen3", "llama", "gemma3")


def make_run(workdir, family="qwen3", **chat):
    config = get_config()
    config.chat.update(chat)
    config.model.update(family=family, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, ff=24)
    config.chat.tool_result_tokens = 77
    params = transformer.init(ModelConfig.random(config.model, 1280), jax.random.key(1))
    with Checkpoints(workdir) as checkpoints:
        checkpoints.save(5, init_state(params, optax.sgd(0.1), jax.random.key(0)), {}, config.to_dict())
    return params


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    return workdir, jax.device_get(make_run(workdir))


def test_an_exported_run_is_the_same_policy(run, tmp_path, capsys):
    assert export.main([str(run[0]), str(tmp_path / "out")]) == 0
    assert "qwen3" in capsys.readouterr().out
    policy = policy_of(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, policy.params, run[1])
    assert policy.config.chat.tool_result_tokens == 77 and policy.template.history == "template"
    chat = [{"role": "user", "content": "Weather in Tromsø?"}]
    assert policy.template.prompt(chat) == policy_of(run[0]).template.prompt(chat)
    assert policy.model.stop_ids == policy.template.stop_ids == (3,)
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"]) == ([3], 0)
    assert AutoConfig.from_pretrained(tmp_path / "out").hidden_size == 16
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == 1280
    assert not list(tmp_path.glob(".*"))


def test_the_template_that_the_config_names_goes_with_the_export(tmp_path):
    """ChatML without Hermes tags in the place of the tokenizer's own; the file itself need not be there later."""
    own = tmp_path / "chatml.jinja"
    own.write_text(
        "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    )
    make_run(tmp_path / "run", template=str(own))
    assert export.main([str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    expected = policy_of(tmp_path / "run").template.text([{"role": "user", "content": "Oslo?"}], generation_prompt=True)
    assert expected == "<|im_start|>user\nOslo?<|im_end|>\n<|im_start|>assistant\n"
    own.unlink()
    policy = policy_of(tmp_path / "out")
    assert policy.config.chat.template == "" and "template" not in json.loads((tmp_path / "out" / "chat.json").read_text())
    assert policy.template.text([{"role": "user", "content": "Oslo?"}], generation_prompt=True) == expected
    with pytest.raises(
        ValueError, match=r"chat.template='.*chatml.jinja': .* cannot be read .FileNotFoundError.; give a jinja file"
    ):
        policy_of(tmp_path / "run")


def test_an_export_of_an_export_in_bfloat16(run, tmp_path):
    assert export.main([f"{run[0]}/checkpoints/5", str(tmp_path / "a")]) == 0
    (tmp_path / "b").mkdir()
    assert export.main([str(tmp_path / "a"), str(tmp_path / "b"), "--dtype=bfloat16"]) == 0
    low = jax.tree.map(lambda x: x.astype("bfloat16"), run[1])
    jax.tree.map(np.testing.assert_array_equal, policy_of(tmp_path / "b", dtype="bfloat16").params, low)
    assert json.loads((tmp_path / "b" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_what_cannot_be_exported(run, tmp_path, capsys):
    def refused(source, folder, message):
        assert export.main([str(source), str(folder)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    refused(run[0], tmp_path / "full", "is not an empty folder")
    refused(tmp_path / "nowhere", tmp_path / "out", "no such folder")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    refused(tmp_path / "begun", tmp_path / "out", "saved no checkpoint yet")
    assert not (tmp_path / "out").exists() and (tmp_path / "full" / "notes.txt").read_text() == "mine"


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(run, tmp_path, capsys):
    """Ids beyond the embedding would be read as its last row."""
    assert export.main([str(run[0]), str(tmp_path / "a")]) == 0
    model = dataclasses.replace(policy_of(tmp_path / "a").model, vocab=640)
    weights.save(tmp_path / "a", model, transformer.init(model, jax.random.key(0)))
    assert export.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "the tokenizer has 1280 ids, the model knows 640" in capsys.readouterr().err


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_logits(tmp_path, family):
    torch = pytest.importorskip("torch", reason="extra [parity]: torch is missing")
    from transformers import AutoModelForCausalLM

    from tests.policy.models import row_logits

    make_run(tmp_path / "run", family)
    policy = policy_of(tmp_path / "run")
    export.export(policy, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    tokens = np.random.default_rng(0).integers(0, 1280, 30)
    with torch.no_grad():
        theirs = model(torch.tensor(tokens[None])).logits[0].numpy()
    np.testing.assert_allclose(row_logits(policy.model, policy.params, tokens), theirs, atol=1e-4)
