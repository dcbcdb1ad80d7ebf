"""What the training script promises of any model it makes, on a small corpus, and of the one that is checked in."""

import re
from types import SimpleNamespace

import pytest

from slca.chat.tokenizer import TINY_MODEL, TINY_TEMPLATE, SentencePieceTokenizer
from slca.chat.train_tokenizer import CONTROL, PAD, PHRASES, VOCAB, texts, train
from tests.chat.conversations import FOUR_TURNS, TOOLS


def corpus():
    task = SimpleNamespace(messages=FOUR_TURNS[:2], tools=TOOLS, demo=FOUR_TURNS[2:])
    return [text for _ in range(20) for text in texts([task])]


@pytest.fixture(scope="module")
def small():
    return train(corpus(), vocab=480)


def test_texts_hold_no_control_string():
    joined = "".join(corpus())
    assert "Oslo" in joined and "get_weather" in joined
    assert not any(word in joined for word in CONTROL)


def test_training_is_deterministic(small):
    assert train(corpus(), vocab=480) == small


def test_a_small_model_round_trips(small):
    t = SentencePieceTokenizer(small, TINY_TEMPLATE.read_text(encoding="utf-8"))
    assert set(t.control) == {PAD, *CONTROL}
    for text in ("Oslo\n {}", "\x00\r▁é", '{"name":"get_weather","arguments":{"city":"Oslo"}}'):
        assert t.decode(t.encode(text)) == text
    assert len(t.encode('{"name":"')) == 1


def pieces(model):
    from sentencepiece import SentencePieceProcessor

    sp = SentencePieceProcessor(model_proto=model)
    return [sp.id_to_piece(i) for i in range(sp.vocab_size()) if not (sp.is_byte(i) or sp.is_control(i) or sp.is_unknown(i))]


def test_no_learned_piece_mixes_words_with_anything(small):
    for model in (small, TINY_MODEL.read_bytes()):
        learned = [piece for piece in pieces(model) if piece not in PHRASES]
        mixed = [piece for piece in learned if re.search(r"[^\W\d_]", piece) and not re.fullmatch(r"[^\W\d_]+", piece)]
        assert mixed == []
        assert [piece for piece in learned if re.search(r"\d", piece) and len(piece) > 1] == []
        assert [piece for piece in learned if "▁" in piece and len(piece) > 1] == []


def test_phrases_hold_a_quote_or_a_brace():
    """So that no sentence of a user can contain one and break the rule that words look the same everywhere."""
    assert all(re.search(r'["{}\]:]', phrase) for phrase in PHRASES)
    assert all(not phrase[0].isalpha() and not phrase[-1].isalpha() for phrase in PHRASES)


def test_the_checked_in_model():
    model = TINY_MODEL.read_bytes()
    assert len(model) < 100_000
    t = SentencePieceTokenizer(model, "")
    assert 1024 <= t.size <= VOCAB == 1280
