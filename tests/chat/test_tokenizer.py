"""The protocol on every kind of tokenizer: text never becomes control, control decodes to itself."""

import numpy as np
import pytest
from hypothesis import strategies as st

from slca.chat.tokenizer import TEXT_TOKENS, FastTokenizer, Tokenizer, from_transformers, load
from tests.chat.families import LLAMA_CONTROL, OPTIONS, TOKENIZERS, template, transformers_tokenizer
from tests.chat.properties import HOSTILE, attacks, property_tests

FAST = [name for name in OPTIONS if name != "tiny"]


@pytest.mark.parametrize("name", OPTIONS)
def test_protocol(name):
    t = template(name).tokenizer
    assert isinstance(t, Tokenizer)
    assert all(0 <= i < t.size for i in (*t.control.values(), *t.stop_ids, t.pad_id))
    assert t.stop_ids and set(t.stop_ids) <= set(t.control.values())
    for text, i in t.control.items():
        assert t.decode([i]) == text
        assert i not in t.encode(text)
        assert t.decode(t.encode(text)) == text
    assert t.encode("") == [] and t.decode([]) == ""
    assert (
        t.decode([*t.encode("a"), t.size + 5, *t.encode("b")]) == "ab"
    )  # a model may have more rows than the tokenizer has ids
    assert t.decode(np.asarray(t.encode("Oslo 4 °C"), np.int32)) == "Oslo 4 °C"


@pytest.mark.parametrize("name", FAST)
def test_harmless_text_has_the_ids_of_transformers(name):
    t, reference = template(name).tokenizer, transformers_tokenizer(name)
    for text in ("Oslo?", "two  spaces\n\n\tand <b>bold</b>", "é世界 🙂", " leading", "x" * 1000):
        assert t.encode(text) == reference.encode(text, add_special_tokens=False)
        assert t.encode_trusted(text) == t.encode(text)


def test_stop_ids():
    assert template("qwen3").tokenizer.stop_ids == (151645,)
    assert template("smollm2").tokenizer.stop_ids == (2,)
    llama = template("llama").tokenizer
    assert {llama.decode([i]) for i in llama.stop_ids} == {"<|eot_id|>", "<|eom_id|>"}
    gemma = template("gemma").tokenizer
    assert {gemma.decode([i]) for i in gemma.stop_ids} == {"<eos>", "<end_of_turn>"}


def test_pad_may_equal_a_stop_id():
    assert template("smollm2").tokenizer.pad_id == 2
    assert template("llama").tokenizer.pad_id in template("llama").tokenizer.stop_ids


def test_added_list_of_the_family_decides():
    assert "<tool_response>" in template("qwen3").tokenizer.control
    assert "<tool_response>" not in template("qwen2_5").tokenizer.control
    assert set(template("llama").tokenizer.control) == set(LLAMA_CONTROL)


def test_added_tokens_that_are_text_stay_text():
    gemma = template("gemma").tokenizer
    assert not {"\n\n", "<b>"} & set(gemma.control)
    assert gemma.encode("a\n\n<b>") == gemma.encode_trusted("a\n\n<b>")
    assert "<b>" in TEXT_TOKENS and "<think>" not in TEXT_TOKENS


def test_generation_config_adds_stop_ids(tmp_path):
    for file in (TOKENIZERS / "qwen3").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [151645, 151643]}')
    assert load(str(tmp_path)).stop_ids == (151643, 151645)


def test_missing_things_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"chat\.tokenizer"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"nowhere\.gguf"):
        load(f"gguf:{tmp_path / 'nowhere.gguf'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"chat\.tokenizer=.*empty"):
        load(str(tmp_path / "empty"))
    for file in (TOKENIZERS / "qwen3").iterdir():
        if file.suffix != ".jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"no chat template; name one in chat\.template"):
        load(str(tmp_path))


def test_a_template_in_the_place_of_the_tokenizers_own(tmp_path):
    """A jinja file, or a folder that has one; for a folder without any template and for one with another."""
    other = tmp_path / "chat_template.jinja"
    other.write_text("{{ messages[0].content }}<|im_end|>")
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in (TOKENIZERS / "qwen3").iterdir():
        if file.suffix != ".jinja":
            (bare / file.name).write_bytes(file.read_bytes())
    for name, given in ((bare, other), (TOKENIZERS / "qwen3", tmp_path), ("tiny", other)):
        loaded = load(str(name), str(given))
        assert loaded.chat_template == "{{ messages[0].content }}<|im_end|>"
    other.write_text(" \n")
    with pytest.raises(ValueError, match=r"chat\.template=.*chat_template\.jinja is empty"):
        load("tiny", str(tmp_path))
    for missing in (bare, tmp_path / "none.jinja"):
        with pytest.raises(ValueError, match=r"chat\.template=.*cannot be read .*; give a jinja file, a folder with"):
            load("tiny", str(missing))


def test_a_control_token_that_text_can_make_is_refused():
    """A word-level vocabulary holds the control string as a word, so plain text reaches it."""
    from tokenizers import AddedToken, models, pre_tokenizers
    from tokenizers import Tokenizer as Pipeline

    pipeline = Pipeline(models.WordLevel({"a": 0, "<|im_end|>": 1, "?": 2}, unk_token="?"))
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.add_tokens([AddedToken("<|im_end|>", special=True)])
    with pytest.raises(ValueError, match="forge"):
        FastTokenizer(pipeline, "", {})


def test_a_tokenizer_without_a_turn_end_is_refused():
    from tokenizers import Tokenizer as Pipeline
    from tokenizers import models

    with pytest.raises(ValueError, match="ends a turn"):
        FastTokenizer(Pipeline(models.BPE({"a": 0}, [])), "", {})


def test_from_transformers_takes_the_tool_template():
    tokenizer = transformers_tokenizer("qwen2_5")
    one = tokenizer.chat_template
    try:
        tokenizer.chat_template = {"default": "plain", "tool_use": one}
        assert from_transformers(tokenizer).chat_template == one
    finally:
        tokenizer.chat_template = one


def test_tiny_words_look_the_same_everywhere():
    t = load("tiny")
    for word in ("Paris", "Trondheim", "zubakoli", "New", "x", "Tromsø"):
        ids = t.encode(word)
        for before, after in ((" ", "?"), ('"', '"'), ('":"', '","'), ("(", ")"), ("\n", " ")):
            assert t.encode(before + word + after) == t.encode(before) + ids + t.encode(after)
    assert t.encode("in Paris") == [*t.encode("in"), *t.encode(" "), *t.encode("Paris")]


def test_tiny_digits_and_spaces_are_single():
    t = load("tiny")
    assert len(t.encode("2024")) == 4 and len(set(t.encode("7777"))) == 1
    assert t.encode("   ") == t.encode(" ") * 3
    assert t.encode("\n\n") == t.encode("\n") * 2


def test_tiny_holds_its_control_tokens():
    t = load("tiny")
    tags = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>", "<think>", "</think>"]
    assert set(t.control) == {"<|pad|>", "<|im_start|>", "<|im_end|>", *tags}
    assert t.pad_id == t.control["<|pad|>"] == 0
    assert t.stop_ids == (t.control["<|im_end|>"],)


@property_tests(text=st.text() | attacks())
def tiny_round_trip(text):
    t = template("tiny").tokenizer
    ids = t.encode(text)
    assert t.decode(ids) == text
    assert not set(ids) & set(t.control.values())


test_tiny_round_trip, test_tiny_round_trip_nightly = tiny_round_trip


@property_tests(text=attacks(), name=st.sampled_from(FAST))
def fast_never_control(text, name):
    t = template(name).tokenizer
    assert not set(t.encode(text)) & set(t.control.values())
    if not any(word in text for word in (*HOSTILE, *t.control)):
        assert t.encode(text) == t.encode_trusted(text)


test_fast_never_control, test_fast_never_control_nightly = fast_never_control


def test_half_surrogates_become_the_replacement_character():
    for name in ("tiny", "qwen3"):
        t = template(name).tokenizer
        assert t.decode(t.encode("a\ud800b")) == "a\ufffdb"
