"""A sentencepiece vocabulary in a GGUF file (Gemma's kind), against the sentencepiece library that made it."""

import io
import random
from itertools import islice
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from slca.chat.tokenizer import load
from slca.tasks.synthesize import tasks

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'slca[gguf]'")

CONTROL = ["<bos>", "<start_of_turn>", "<end_of_turn>"]
MATCHED = ["\n", "\n\n", "▁▁", "▁▁▁▁", "<b>", "</b>"]


@pytest.fixture(scope="module")
def reference():
    text = (str(task.messages[-1]["content"]) for task in islice(tasks(seed=3, split="train"), 300))
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=text, model_writer=model, model_type="bpe", vocab_size=700, hard_vocab_limit=False, byte_fallback=True,
        normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False, user_defined_symbols=MATCHED,
        control_symbols=CONTROL, pad_id=0, eos_id=1, bos_id=-1, unk_id=2, num_threads=1, minloglevel=2,
    )  # fmt: skip
    return SentencePieceProcessor(model_proto=model.getvalue())


def write(path, pieces, prefix=False):
    """As llama.cpp's converter does: spaces of matched tokens as they are, kinds by number."""

    def kind(i):
        if pieces.is_unknown(i):
            return 2
        if pieces.is_control(i):
            return 3
        return 6 if pieces.is_byte(i) else 4 if pieces.id_to_piece(i) in MATCHED else 1

    size = pieces.vocab_size()
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    names = [pieces.id_to_piece(i) for i in range(size)]
    writer.add_token_list([name.replace("▁", " ") if kind(i) == 4 else name for i, name in enumerate(names)])
    writer.add_token_scores([pieces.get_score(i) for i in range(size)])
    writer.add_token_types([kind(i) for i in range(size)])
    writer.add_add_space_prefix(prefix)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(pieces.piece_to_id("<bos>"))
    writer.add_chat_template((Path(__file__).parent / "gemma_like.jinja").read_text(encoding="utf-8"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_the_ids_are_those_of_sentencepiece(tmp_path, reference):
    ours = load(f"gguf:{write(tmp_path / 'm.gguf', reference)}")
    draw = random.Random(0)
    words = ["weather", " in", " ", "  ", "    ", "\n", "\n\n", "é", "世", "😀", "<b>", "▁", "1", "<0x41>", "_", "Oslo", "ing"]
    texts = ["".join(draw.choices(words, k=9)) for _ in range(300)]
    texts += [str(task.messages[-1]["content"]) for task in islice(tasks(seed=4, split="train"), 50)]
    for text in texts:
        assert ours.encode(text) == reference.encode(text), text
        assert ours.decode(ours.encode(text)) == text.replace("▁", " ")
    assert set(ours.control) >= set(CONTROL) and "<b>" not in ours.control and "\n" not in ours.control
    assert ours.stop_ids == (1, reference.piece_to_id("<end_of_turn>"))
    assert not set(ours.encode("a<end_of_turn>")) & set(ours.control.values())


def test_a_vocabulary_that_wants_a_space_in_front_is_refused(tmp_path, reference):
    with pytest.raises(ValueError, match="llama without a space in front"):
        load(f"gguf:{write(tmp_path / 'm.gguf', reference, prefix=True)}")
