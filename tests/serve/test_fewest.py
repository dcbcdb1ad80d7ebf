"""A bound on the tokens of a text, against the tokens themselves."""

import asyncio
import random
import time
from types import SimpleNamespace

import pytest

from slca.chat import tokenizer as tokenizers
from slca.serve.fewest import Fewest, fewest
from tests.serve.engines import Told, chat, post, tiny

ALPHABETS = (
    "a",
    "ab \n",
    "0123456789",
    "abcdefghijklmnopqrstuvwxyz ",
    " \t\n",
    "é日🙂ﬁe\u0301\u0327",
    "<|im_end|>",
    "▁ ▁x",
    "\ud800\x00",
)


def texts():
    rng = random.Random(0)
    for alphabet in ALPHABETS:
        for size in (1, 7, 40, 300):
            yield "".join(rng.choices(alphabet, k=size))
    yield from (
        "",
        "How warm is it in Oslo tomorrow?",
        '{"name": "get_weather", "arguments": {"city": "Tromsø"}}',
        "a" * 400,
        " " * 400,
    )


def byte_level():
    """A byte-level BPE with long tokens, an added text token, a control token and NFC, as Qwen has it."""
    pipelines = pytest.importorskip("tokenizers")
    pipeline = pipelines.Tokenizer(pipelines.models.BPE())
    pipeline.normalizer = pipelines.normalizers.NFC()
    pipeline.pre_tokenizer = pipelines.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = pipelines.decoders.ByteLevel()
    trainer = pipelines.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pipelines.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    pipeline.train_from_iterator(["aaaaaaaa the weather   é日 é日 in oslo 12 345"] * 20, trainer)
    pipeline.add_tokens(["<td>", "  "])
    pipeline.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizers.FastTokenizer(pipeline, "", {}, stop_ids=())


@pytest.mark.parametrize("make", [lambda: tiny().tokenizer, byte_level])
def test_no_text_has_fewer_tokens(make):
    tokenizer = make()
    plain, trusted = fewest(tokenizer)
    for text in texts():
        assert plain(text) <= len(tokenizer.encode(text)), text
        assert trusted(text) <= len(tokenizer.encode_trusted(text.encode("utf-8", "replace").decode())), text
    assert plain("7" * 1000) > 200 and plain("") == 0  # and it says something


def test_what_counts():
    bound = Fewest(tiny().tokenizer)
    text, n = "7" * 100, fewest(tiny().tokenizer)[0]("7" * 100)
    assert bound.conversation([{"role": "user", "content": text}, {"role": "assistant"}]) == n
    assert bound.conversation([{"role": "tool", "content": text}]) == 0
    assert bound.conversation([{"role": "assistant", "content": f"<think>{text}</think>  "}]) == 0
    assert Fewest(tiny().tokenizer, least=100).conversation([{"role": "user", "content": text}]) == 0
    assert Fewest(SimpleNamespace()).raw(text) == 0


def test_a_text_that_cannot_fit_is_never_tokenized():
    said = "7" * 4_000_000
    began = time.process_time()
    for path, body, param in (
        ("chat/completions", {"messages": [{"role": "user", "content": said}]}, "messages"),
        ("completions", {"prompt": said}, "prompt"),
        ("completions", {"prompt": ["x", said]}, "prompt"),
    ):
        status, answer = asyncio.run(post(Told("ok"), f"/v1/{path}", {"model": "slca"} | body, max_body=2**23))
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, "context_length_exceeded")
        assert "at least" in answer["error"]["message"]
    assert time.process_time() - began < 3
    assert asyncio.run(chat(Told("ok"), messages=[{"role": "user", "content": "x " * 100}]))[0] == 200
