"""Replies of a small random policy against the sampler's own greedy rows, and of an endpoint that answers as it is told."""

import json

import jax
import pytest

from configs.default import get_config
from slca.chat import tokenizer
from slca.chat.template import Template
from slca.evals.chat import Endpoint, Request, Sampled
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.restore import Policy
from slca.rollout.sampler import Sampler
from slca.sgls.endpoint import EndpointError
from slca.types import ToolCall
from tests.chat import families
from tests.sgls.server import Server, completion

TOOLS = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}}]


def asked(text, key="a"):
    return Request(key, [{"role": "user", "content": text}], TOOLS)


@pytest.fixture(scope="module")
def policy():
    config = get_config()
    config.model.update(width=16, layers=1, heads=2, kv_heads=1, head_dim=8, ff=24, max_length=256)
    template = Template(tokenizer.load("tiny"))
    model = ModelConfig.random(config.model, 1280)
    return Policy(config, model, transformer.init(model, jax.random.key(0)), template)


def test_greedy_replies_are_those_of_the_sampler(policy):
    chat = Sampled(policy, slots=2, context=256, max_tokens=12)
    requests = [asked("weather in Oslo?"), asked("hi"), asked("word " * 300), asked("and in Rome?")]
    replies = chat(requests)
    assert [reply.skipped for reply in replies] == [False, False, True, False]
    prompts = [policy.template.prompt(requests[i].messages, TOOLS) for i in (0, 1, 3)]
    assert [replies[i].prompt_tokens for i in (0, 1, 3)] == list(map(len, prompts))
    sampler = Sampler(policy.model, slots=4, cache_length=256, prompt_buckets=(64, 256))
    keys = jax.random.split(jax.random.key(0), 3)
    samples = sampler.generate(
        policy.params, prompts, keys=keys, max_new_tokens=12, temperature=0.0, stop_ids=policy.template.stop_ids
    )
    for row, i in enumerate((0, 1, 3)):
        tokens = [int(t) for t in samples.tokens[row][: int(samples.length[row])]]
        tokens = tokens[:-1] if tokens[-1] in policy.template.stop_ids else tokens
        assert replies[i].text == policy.tokenizer.decode(tokens)
        assert replies[i].truncated != bool(samples.stopped[row]) and replies[i].calls is None
    assert chat(requests[::-1])[::-1] == replies  # neither order nor earlier calls matter


def test_a_conversation_that_the_template_refuses_is_skipped_and_the_others_are_answered(policy, capsys):
    """Llama's takes one call a turn; a model makes two, and what follows cannot be rendered."""
    template = Template(families.transformers_tokenizer("llama"), wire="llama_json")
    model = ModelConfig.random(policy.config.model, template.tokenizer.size)
    llama = policy._replace(template=template, model=model, params=transformer.init(model, jax.random.key(0)))
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
    user = {"role": "user", "content": "hi"}
    two = [
        user,
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]
    chat = Sampled(llama, slots=2, context=256, max_tokens=4)
    replies = chat([Request("bad", two, []), Request("good", [user], []), Request("worse", two, [])])
    assert [reply.skipped for reply in replies] == [True, False, True] and chat.refused == 2
    assert capsys.readouterr().err.count("a conversation is skipped: the chat template refuses the messages") == 1


def test_sampled_replies_depend_on_seed_and_place(policy):
    def texts(seed, key):
        return Sampled(policy, slots=2, context=256, max_tokens=12, temperature=1.0, seed=seed)([asked("hi", key)])[0].text

    assert texts(0, "a") == texts(0, "a") and len({texts(0, "a"), texts(1, "a"), texts(0, "b")}) == 3


def test_a_context_without_room_is_refused(policy):
    with pytest.raises(ValueError, match="--context=12"):
        Sampled(policy, context=12, max_tokens=12)([asked("hi")])


def test_an_endpoint_reads_its_own_calls():
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}, {"function": {"name": "g", "arguments": "{broken"}},
        {"function": {"arguments": "{}"}},
    ]  # fmt: skip
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    reply = {
        "choices": [{"message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4},
    }
    history = [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [ToolCall("f", {"a": 1}, "c").message()]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    ]  # fmt: skip
    with Server([("raw", json.dumps(reply).encode()), "text", ("status", 400)]) as server:
        chat = Endpoint(server.url, "m", concurrency=1)
        first, second, third = chat([Request("a", history, TOOLS), asked("hi"), asked("long")])
        sent = server.requests[0]
        chat.client.close()
    assert (first.calls, first.prompt_tokens, first.completion_tokens) == ([ToolCall("f", {"a": 1})], 9, 4)
    assert (second.text, second.calls) == ("text", []) and third.skipped
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}' and sent["tools"] == TOOLS


def test_a_dead_endpoint_ends_the_evaluation():
    with Server([("raw", completion(None)), "closed"]) as server:
        chat = Endpoint(server.url, "m", concurrency=1)
        chat.client.backoff = 0.0
        with pytest.raises(EndpointError):
            chat([asked("hi"), asked("ho")])
        chat.client.close()
