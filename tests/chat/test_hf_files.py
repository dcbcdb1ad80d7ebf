import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from slca.chat import hf_files, tokenizer
from slca.chat.template import Template
from slca.tasks.schema import public_specs
from slca.tasks.synthesize import tasks

QWEN = Path(__file__).parents[1] / "golden" / "tokenizers" / "qwen3"
TINY = tokenizer.load("tiny")
PIPELINE = tokenizer.FastTokenizer(hf_files.from_sentencepiece(TINY), "", {})


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    hf_files.write(TINY, folder)
    return folder


def test_the_tiny_tokenizer_survives_whole(exported):
    again = tokenizer.load(str(exported))
    for name in ("control", "stop_ids", "pad_id", "size", "chat_template"):
        assert getattr(again, name) == getattr(TINY, name), name
    ours, theirs = Template(TINY), Template(again)
    for task in islice(tasks(seed=11, split="heldout_tools"), 25):
        conversation, tools = [*task.messages, *task.demo], public_specs(task.tools)
        assert ours.ids(conversation, tools) == theirs.ids(conversation, tools)


PIECES = [
    '{"name":"',
    '","arguments":{',
    '","description":"',
    '"],"',
    "<|im_end|>",
    "</tool_call>",
    "<unk>",
    "<0x41>",
    "▁",
    " ",
    "er",
]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=8).map("".join))
def test_any_text_has_the_ids_of_sentencepiece(text):
    assert PIPELINE.encode(text) == TINY.encode(text)
    assert PIPELINE.decode(TINY.encode(text)) == TINY.decode(TINY.encode(text))


def test_transformers_renders_the_same_chat(exported):
    loaded = AutoTokenizer.from_pretrained(exported)
    chat = [{"role": "user", "content": "Weather in Tromsø, 12 ▁ days?"}]
    assert loaded.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] == Template(TINY).prompt(chat)
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|pad|>")
    ids = [*TINY.encode("Hi"), TINY.control["<tool_call>"], TINY.control["<|im_end|>"]]
    assert loaded.decode(ids, skip_special_tokens=True) == "Hi<tool_call>"


def test_files_of_a_hugging_face_tokenizer_are_copied(tmp_path):
    hf_files.write(tokenizer.load(str(QWEN)), tmp_path)
    for file in QWEN.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_a_pipeline_without_a_folder_is_written(tmp_path):
    loaded = tokenizer.load(str(QWEN))
    loaded.name = "model.gguf"
    hf_files.write(loaded, tmp_path)
    again = tokenizer.load(str(tmp_path))
    assert again.control == loaded.control and again.encode("größer\n\n 12") == loaded.encode("größer\n\n 12")
    settings_ = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings_["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    """transformers makes up an empty one where the config names a model type."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(ValueError, match=r"the folder holds no tokenizer \(tokenizer.json"):
        tokenizer.load(str(tmp_path))


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    class Other:
        name = "other"

    with pytest.raises(ValueError, match=r"'other' \(Other\) has no form that transformers loads"):
        hf_files.write(Other(), tmp_path)
