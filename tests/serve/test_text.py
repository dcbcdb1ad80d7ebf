"""Ids to text piece by piece: characters over several tokens, stop strings over several tokens, markers."""

import random

import pytest

from slca.chat import tokenizer as tokenizers
from slca.serve.engine import Piece
from slca.serve.text import Choice, Detokenizer, beginning

TINY = tokenizers.load("tiny")
STOP = TINY.stop_ids[0]


def pieces(ids, sizes, finish="stop"):
    cut = 0
    parts = []
    while cut < len(ids):
        size = sizes[len(parts) % len(sizes)]
        parts.append(ids[cut : cut + size])
        cut += size
    return [Piece(part, [-1.0] * len(part), finish if i + 1 == len(parts) else "") for i, part in enumerate(parts)]


@pytest.mark.parametrize("text", ["naïve €5 → 日本語 🙂!", "plain", " leading and trailing ", "▁ and \n\t"])
def test_characters_come_whole_and_together_they_are_the_text(text):
    detokenizer = Detokenizer(TINY)
    parts = [detokenizer.push([i]) for i in TINY.encode(text)] + [detokenizer.push([], last=True)]
    assert "".join(parts) == text and not any("\ufffd" in part for part in parts)


def test_bytes_that_are_no_character_come_at_the_end():
    euro = TINY.encode("€")  # three byte tokens
    assert len(euro) == 3
    detokenizer = Detokenizer(TINY)
    assert detokenizer.push(euro[:2]) == "" and detokenizer.waiting == 2
    assert detokenizer.push([], last=True) == TINY.decode(euro[:2]) == "\ufffd"


def test_any_ids_in_any_pieces_decode_as_at_once():
    rng = random.Random(0)
    for _ in range(200):
        ids = [rng.randrange(TINY.size) for _ in range(rng.randint(1, 30))]
        detokenizer, text, at = Detokenizer(TINY), "", 0
        while at < len(ids):
            size = rng.randint(1, 5)
            text += detokenizer.push(ids[at : at + size], last=at + size >= len(ids))
            at += size
        assert text == TINY.decode(ids)


@pytest.mark.parametrize("sizes", [[1], [2], [3, 1], [100]])
def test_a_stop_string_that_crosses_tokens_ends_the_text_before_it(sizes):
    ids = [*TINY.encode("one two, thr33 four"), STOP]
    choice = Choice(TINY, stops=("o, thr3",), ends=frozenset({STOP}))
    for piece in pieces(ids, sizes):
        choice.push(piece)
        assert "one tw".startswith(choice.settled()[:6]) and len(choice.settled()) <= 6
        if choice.finish:
            break
    assert (choice.text, choice.finish, choice.silent) == ("one tw", "stop", 0)
    assert choice.ids == TINY.encode("one two, thr3") and len(choice.logprobs) == len(choice.ids)


@pytest.mark.parametrize("sizes", [[1], [100]])
def test_the_stop_string_that_is_complete_first_wins(sizes):
    choice = Choice(TINY, stops=("abc", "b"))
    for piece in pieces(TINY.encode("xabcd"), sizes, "length"):
        choice.push(piece)
        if choice.finish:
            break
    assert choice.text == "xa"


def test_the_stop_token_is_counted_and_says_nothing():
    choice = Choice(TINY, ends=frozenset({STOP}))
    choice.push(Piece([*TINY.encode("hi"), STOP], [-1.0] * (len(TINY.encode("hi")) + 1), "stop"))
    assert (choice.text, choice.silent, choice.ids[-1]) == ("hi", 1, STOP)
    cut = Choice(TINY, ends=frozenset({STOP}))
    cut.push(Piece(TINY.encode("hi"), [-1.0], "length"))
    assert (cut.text, cut.silent, cut.finish) == ("hi", 0, "length")


def test_what_may_become_a_stop_string_is_held_back():
    choice = Choice(TINY, stops=("STOP",))
    choice.push(Piece(TINY.encode("a ST"), [0.0] * 9))
    assert choice.settled() == "a "
    choice.push(Piece(TINY.encode("ART"), [0.0] * 9))
    assert choice.settled() == "a START"


def test_beginning_is_the_longest_proper_one():
    assert [beginning(text, ("aab", "x")) for text in ("aa", "caa", "aab", "", "ax", "a")] == [2, 2, 0, 0, 0, 1]


def test_a_forged_marker_ends_the_answer_where_the_reader_says_so():
    choice = Choice(TINY, markers=("<r>",), forged=lambda text: not text.startswith('"'))
    choice.push(Piece(TINY.encode("a<r>b"), [0.0] * 9))
    assert (choice.text, choice.finish) == ("a", "stop")
    quoted = Choice(TINY, markers=("<r>",), forged=lambda text: not text.startswith('"'))
    quoted.push(Piece(TINY.encode('"a<r>b'), [0.0] * 9, "length"))
    assert (quoted.text, quoted.finish) == ('"a<r>b', "length")
