"""The whole server over a tiny model with random weights: answers are the offline sampler's, forms are kept."""

import asyncio
import json
import time

import jax
import numpy as np
import pytest

from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.rollout.sampler import Sampler, row_keys
from slca.serve.slots import SlotEngine
from slca.sgls.grammar import available
from tests.serve.engines import HELLO, TOOLS, client, events, joined, tiny

SEED, LONGEST = 11, 24
constrained = pytest.mark.skipif(not available(), reason="llguidance is not installed (extra: grammar)")


@pytest.fixture(scope="module")
def served():
    """(sampler, parameters, engine) of a two-layer model."""
    from configs.default import get_config

    section = get_config().model
    section.width, section.layers, section.heads, section.kv_heads, section.head_dim, section.ff = 16, 2, 2, 1, 8, 32
    model = ModelConfig.random(section, -(-tiny().tokenizer.size // 64) * 64)
    params = transformer.init(model, jax.random.key(0))
    sampler = Sampler(
        model, slots=4, cache_length=256, prompt_buckets=(256,), suffix_buckets=(16,), decode_steps=8, constrained=available()
    )
    engine = SlotEngine(sampler, params, tiny(), warm=False)
    yield sampler, params, engine
    engine.close()


def offline(served, prompt, *, seed, sample=0, temperature=1.0):
    """(ids, log-probs) of `Sampler.generate` for the keys that the engine documents."""
    sampler, params, engine = served
    zero = np.zeros(1, np.int32)
    out = sampler.generate(
        params, [prompt], keys=row_keys(seed, 0, zero, zero + sample, zero), max_new_tokens=LONGEST, temperature=temperature,
        stop_ids=tuple(sorted(engine.ends)),
    )  # fmt: skip
    return out.tokens[0, : out.length[0]].tolist(), out.logprob[0, : out.length[0]].tolist()


def ask(served, *bodies):
    """The answers of requests made at once."""

    async def go():
        async with client(served[2]) as http:
            posts = [
                http.post("/v1/chat/completions", json=HELLO | {"max_tokens": LONGEST, "seed": SEED} | body) for body in bodies
            ]
            return await asyncio.gather(*posts)

    return asyncio.run(go())


def test_answers_are_the_offline_samplers_whatever_runs_beside_them(served):
    asked = [{"seed": seed, "temperature": t, "n": 2} for seed in (0, 5, 2**31 - 1) for t in (0, 0.7, 1.5)]
    others = [{"seed": s, "messages": [{"role": "user", "content": "x" * s}], "max_tokens": s + 1} for s in range(9)]
    wanted = [body | {"return_token_ids": True, "logprobs": True} for body in asked]
    responses = [response.json() for response in ask(served, *others[:5], *wanted, *others[5:])][5:-4]
    prompt = tiny().prompt(HELLO["messages"])
    for body, response in zip(asked, responses):
        for choice in response["choices"]:
            assert choice["prompt_token_ids"] == prompt
            ids, logprobs = offline(served, prompt, seed=body["seed"], sample=choice["index"], temperature=body["temperature"])
            assert choice["token_ids"] == ids
            said = [entry["logprob"] for entry in choice["logprobs"]["content"]]
            np.testing.assert_allclose(said, logprobs[: len(said)], atol=1e-5)


def test_a_conversation_goes_on_from_its_row_with_the_ids_of_a_new_one(served):
    """Turn after turn, the client's ids being those it got; each turn against the offline sampler's run of the whole prompt."""
    sampler, params, _ = served
    engine = SlotEngine(sampler, params, tiny(), warm=False, reuse=1.0)

    async def talk(http, seed):
        prompt, turns = tiny().prompt([{"role": "user", "content": f"hello {seed}"}]), []
        for _ in range(3):
            asked = {"model": "slca", "prompt": prompt, "seed": seed, "max_tokens": LONGEST, "return_token_ids": True}
            ids = (await http.post("/v1/completions", json=asked)).json()["choices"][0]["token_ids"]
            turns.append((prompt, ids))
            prompt = [*prompt, *ids, *tiny().tokenizer.encode("and then? " * (1 + seed))]
        return turns

    async def go():
        async with client(engine) as http:
            return await asyncio.gather(*[talk(http, seed) for seed in range(3)]), engine.stats()

    conversations, stats = asyncio.run(go())
    for seed, turns in enumerate(conversations):
        for prompt, ids in turns:
            assert ids == offline(served, prompt, seed=seed)[0]
    reused = sum(len(prompt) + len(ids) for turns in conversations for prompt, ids in turns[:-1])
    assert (stats["continued_total"], stats["continued_tokens_total"]) == (6, reused)


@pytest.mark.parametrize("temperature", [1e-300, 1e-39, 2e-38, 5e-4])
def test_a_tiny_temperature_is_answered_as_0(served, temperature):
    fields = {"logprobs": True, "return_token_ids": True}
    tiny_one, greedy = (ask(served, {"temperature": t} | fields)[0].json()["choices"][0] for t in (temperature, 0))
    assert tiny_one["token_ids"] == greedy["token_ids"] and tiny_one["logprobs"] == greedy["logprobs"]


def test_a_seed_of_any_size_repeats(served):
    for seed in (-1, 2**31, 10**30):
        one, two = ask(served, {"seed": seed}, {"seed": seed})
        assert one.json()["choices"] == two.json()["choices"]


def test_streams_say_what_bodies_say(served):
    fields = {"temperature": 1.3, "stop": ["a", "e"], "logprobs": True}
    bodies = ask(served, *({"seed": seed} | fields for seed in range(12)))
    streams = ask(served, *({"seed": seed, "stream": True} | fields for seed in range(12)))
    for body, stream in zip(bodies, streams):
        whole = body.json()["choices"][0]
        message, finish, entries = joined(events(stream.text))
        assert (message["content"], finish) == (whole["message"]["content"], whole["finish_reason"])
        assert entries == whole["logprobs"]["content"]


def test_nothing_is_left_behind(served):
    engine, end = served[2], time.monotonic() + 60
    while (
        engine.stats()["in_flight"] or engine.stats()["slots_busy"]
    ):  # the device thread drops what is cancelled after its round
        assert time.monotonic() < end, engine.stats()
        time.sleep(0.01)
    assert engine.health() == ""


@constrained
def test_a_response_follows_its_schema_beside_free_rows(served):
    schema = {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "unit": {"enum": ["C", "°F"]}},
        "required": ["n", "unit"], "additionalProperties": False,
    }  # fmt: skip
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, "max_tokens": 60}
    free = {"return_token_ids": True}
    answers = ask(served, *({"seed": s, "stream": s == 3} | form for s in range(4)), free)
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers[:3]]
    texts.append(joined(events(answers[3].text))[0]["content"])
    for text in texts:
        value = json.loads(text)
        assert 0 <= value["n"] <= 9 and value["unit"] in ("C", "°F")
    assert answers[4].json()["choices"][0]["token_ids"] == offline(served, tiny().prompt(HELLO["messages"]), seed=SEED)[0]


@constrained
def test_a_call_that_must_be_made_is_made(served):
    tools = [
        {"type": "function", "function": {"name": tool["function"]["name"], "parameters": {
            "type": "object", "properties": {"at": {"$ref": "#/$defs/at"}}, "required": ["at"], "additionalProperties": False,
            "$defs": {"at": {"enum": [tool["function"]["name"], "else"]}},
        }}}
        for tool in TOOLS
    ]  # fmt: skip
    named = {"type": "function", "function": {"name": "get_time"}}
    fields = {"tools": tools, "max_tokens": 60}
    answers = ask(served, *({"seed": s, "tool_choice": "required"} | fields for s in range(4)), {"tool_choice": named} | fields)
    for answer in answers:
        choice = answer.json()["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        assert choice["finish_reason"] == "tool_calls" and arguments["at"] in (name, "else")
    assert name == "get_time"


@constrained
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize("parameters", [{"enum": [1, 2]}, {"anyOf": [{"type": "string"}]}, {"not": {}}])
def test_parameters_that_no_call_can_have_are_named(served, parameters, choice):
    tools = [TOOLS[0], {"type": "function", "function": {"name": "f", "parameters": parameters}}]
    (answer,) = ask(served, {"tools": tools, "tool_choice": choice, "max_tokens": 60})
    if answer.status_code == 200:  # another tool can be called
        assert (
            choice == "required"
            and answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
        )
    else:
        assert answer.json()["error"]["param"] == "tools[1].function.parameters", answer.text


@constrained
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},
        {"type": "integer", "minimum": -1e20, "exclusiveMaximum": -1e19},
        {"enum": [1, -(2**63)]},
    ],
)
def test_numbers_that_would_end_the_process_are_refused(served, schema):
    """llguidance 1.9 dies of a 64-bit integer that is the lowest there is."""
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    forced = {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "tool_choice": "required"}
    for body, param in ((form, "response_format"), (forced, "tools[0].function.parameters")):
        (answer,) = ask(served, body)
        error = answer.json()["error"]
        assert answer.status_code == 400 and param in error["param"] and "64-bit" in error["message"], answer.text
    assert served[2].health() == "" and ask(served, {})[0].status_code == 200


@constrained
@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"$ref": "http://example.org/x"}, {"type": "string", "pattern": "("}, {"enum": []}, False]
)
def test_schemas_without_a_grammar_are_refused(served, schema):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    (answer,) = ask(served, {"response_format": form})
    assert answer.status_code == 400 and "response_format" in answer.json()["error"]["param"], answer.text
    assert served[2].health() == ""


@constrained
def test_schemas_that_nothing_can_satisfy_are_the_requests_fault(served):
    """Found out while it is sampled: an object that is required of itself has no end, a large one breaks the parser."""
    itself = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
    large = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}
    forced = {"tools": [{"type": "function", "function": {"name": "f", "parameters": itself}}], "tool_choice": "required"}
    forms = [{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}} for s in (itself, large)]
    bodies = [body | {"max_tokens": 150, "stream": stream} for body in (forced, *forms) for stream in (False, True)]
    for body, answer in zip(bodies, ask(served, *bodies)):
        assert answer.status_code == 400 or (body["stream"] and answer.status_code == 200), answer.text
        assert "demands itself" in answer.text and "[DONE]" not in answer.text
        assert ('"param":"tool_choice"' if "tools" in body else '"param":"response_format"') in answer.text.replace(": ", ":")
    assert served[2].health() == "" and ask(served, {})[0].status_code == 200
