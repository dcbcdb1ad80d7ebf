"""The backend over a `generate` callable: batching, deadlines, failures, schemas."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from slca.sgls import grammar
from slca.sgls.backends import BackendError
from slca.sgls.local import Generated
from slca.sgls.simulator import Simulator
from slca.tasks.schema import ToolSet
from slca.types import Context, Observation, ToolCall
from tests.sgls.tools import TOOLS

GOOD = '{"city": "Oslo", "temp_c": 4}'


def weather(city):
    return ToolCall("get_weather", {"city": city})


@pytest.fixture
def simulate():
    made = []

    def make(generate, **options):
        made.append(Simulator("jax", generate=generate, **options))
        return made[-1]

    yield make
    for simulator in made:
        simulator.close()


def test_calls_that_come_together_are_sampled_together(simulate):
    sizes = []

    def generate(prompts, grammars, max_tokens, temperature, seeds):
        sizes.append(len(prompts))
        assert (max_tokens, temperature) == (99, 0.25) and all(prompt[0]["role"] == "system" for prompt in prompts)
        time.sleep(0.05)
        return [Generated(GOOD, 9, 50)] * len(prompts)

    simulator = simulate(generate, max_tokens=99, temperature=0.25)
    with ThreadPoolExecutor(12) as pool:
        seen = list(pool.map(lambda i: simulator.simulate(weather(f"City {i}"), TOOLS, Context("g")), range(12)))
    assert [o.text for o in seen] == [GOOD] * 12 and seen[0].cost["tokens"] == 9
    assert sum(sizes) == 12 and len(sizes) <= 6
    assert simulator.metrics()["local/batches"] == len(sizes)


def test_a_failing_engine_fails_its_calls_only(simulate):
    script = [RuntimeError("out of memory"), [], [Generated(GOOD)]]

    def generate(prompts, grammars, max_tokens, temperature, seeds):
        entry = script.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry

    simulator = simulate(generate)
    seen = [simulator.simulate(weather("Oslo"), TOOLS, Context("g")) for _ in range(3)]
    assert [o.status for o in seen] == ["sim_failed", "sim_failed", "ok"]
    assert [o.provenance.get("error") for o in seen] == ["generate/RuntimeError", "generate/ValueError", None]


class Panic(BaseException):
    """As the failures of compiled libraries: no Exception."""


def test_a_failure_that_is_no_exception_ends_neither_the_thread_nor_later_calls(simulate):
    script = [Panic("engine"), None, [Generated(GOOD)]]

    def generate(prompts, *_):
        entry = script.pop(0)
        if isinstance(entry, Panic):
            raise entry
        return entry  # None has no length

    simulator = simulate(generate, timeout=20.0)
    seen = [simulator.simulate(weather("Oslo"), TOOLS, Context("g")) for _ in range(3)]
    assert [o.provenance.get("error") for o in seen] == ["generate/Panic", "generate/TypeError", None]


@pytest.mark.parametrize("error", [Panic, ArithmeticError])
def test_a_prompt_or_grammar_that_fails_fails_alone(simulate, monkeypatch, error):
    def compile(schema, max_tokens):
        if "body" in json.dumps(schema):  # that of a note
            raise error
        return None

    monkeypatch.setattr(grammar, "available", lambda: True)
    monkeypatch.setattr(grammar, "compile", compile)
    sizes = []

    def generate(prompts, *_):
        sizes.append(len(prompts))
        return [Generated(GOOD)] * len(prompts)

    simulator = simulate(generate, timeout=20.0)
    calls = [weather("Oslo"), ToolCall("notes.get", {"id": "7"}), weather("Rome")]
    with ThreadPoolExecutor(3) as pool:
        seen = list(pool.map(lambda call: simulator.simulate(call, TOOLS, Context("g")), calls))
    assert [o.provenance.get("error") for o in seen] == [None, f"prompt/{error.__name__}", None] and sum(sizes) == 2
    assert simulator.simulate(calls[1], TOOLS, Context("g")).provenance["error"] == f"prompt/{error.__name__}"
    assert simulator.simulate(weather("Bonn"), TOOLS, Context("g")).status == "ok"


def test_a_call_after_the_close_is_refused_at_once(simulate):
    simulator = simulate(lambda prompts, *_: [Generated(GOOD)] * len(prompts), timeout=20.0)
    simulator.close()
    assert simulator.simulate(weather("Oslo"), TOOLS, Context("g")).provenance["error"] == "closed"


def test_a_prompt_without_a_reply_fails_alone(simulate):
    def generate(prompts, *_):
        time.sleep(0.05)
        return [BackendError("prompt_too_long") if "Sick" in prompt[1]["content"] else Generated(GOOD) for prompt in prompts]

    simulator = simulate(generate)
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda city: simulator.simulate(weather(city), TOOLS), ["Oslo", "Sick", "Rome", "Bonn"]))
    assert [o.status for o in seen] == ["ok", "sim_failed", "ok", "ok"] and seen[1].provenance["error"] == "prompt_too_long"


def test_draws_are_named_by_the_world_or_by_the_call(simulate):
    seeds = []

    def generate(prompts, grammars, max_tokens, temperature, named):
        seeds.extend(named)
        return [Generated(GOOD)] * len(prompts)

    contexts = [Context("g", 0, seed=1), Context("g", 1, seed=1), Context("h", 0, seed=1), Context("g", 0, seed=2)]
    shared, alone = simulate(generate), simulate(generate, cache="none")
    for context in contexts:
        shared.simulate(weather("Oslo"), TOOLS, context)
    assert len(seeds) == 2 < len(contexts)  # a cached answer is asked for once
    first = [simulate(generate).simulate(weather("Oslo"), TOOLS, context) and seeds[-1] for context in contexts]
    assert first[0] == first[1] and len(set(first)) == 3 and all(0 <= seed < 2**31 for seed in first)
    each = [alone.simulate(weather("Oslo"), TOOLS, context) and seeds[-1] for context in contexts]
    assert len(set(each)) == 4
    earlier = [(weather("Oslo"), Observation(GOOD))]
    others = [{"step": 1}, {"copy": 1}, {"sample": 1}, {"call": 1}, {"transcript": earlier}, {"seed": 1}, {}, {}]
    apart = [alone.simulate(weather("Oslo"), TOOLS, Context("i", **other)) and seeds[-1] for other in others]
    assert len(set(apart)) == 7 and apart[-1] == apart[-2]  # the same call of the same rollout draws the same
    worlds = [simulate(generate).simulate(weather("Oslo"), TOOLS, Context("i", **other)) and seeds[-1] for other in others]
    assert len(set(worlds)) == 2  # a shared answer is named by the run's seed and the group


def test_another_model_is_another_cache(simulate, tmp_path):
    sizes = []

    def generate(prompts, *_):
        sizes.append(len(prompts))
        return [Generated(GOOD)] * len(prompts)

    for options in ({"model": "a"}, {"model": "a"}, {"model": "b"}, {"temperature": 0.2}, {"max_tokens": 99}, {"timeout": 9.0}):
        options = {"model": "a"} | options
        simulate(generate, store=str(tmp_path / "s.db"), **options).simulate(weather("Oslo"), TOOLS, Context("g"))
    assert len(sizes) == 4  # a, b, another temperature, another budget; a deadline changes no answer


def test_the_model_is_counted_and_closed(simulate):
    class Model:
        counts, closed = {"compiles": 3}, False

        def __call__(self, prompts, *_):
            return [Generated(GOOD)] * len(prompts)

        def close(self):
            self.closed = True

    model = Model()
    simulator = simulate(model)
    simulator.simulate(weather("Oslo"), TOOLS)
    assert simulator.metrics()["local/compiles"] == 3 and simulator.metrics()["local/batches"] == 1
    simulator.close()
    assert model.closed and not simulator._backend._thread.is_alive()


def test_the_deadline_holds(simulate):
    release = threading.Event()

    def generate(prompts, *_):
        release.wait(60)
        return [Generated(GOOD)] * len(prompts)

    observation = simulate(generate, timeout=0.2).simulate(weather("Oslo"), TOOLS)
    release.set()
    assert observation.status == "timeout"


def test_paper_mode_has_neither_grammar_nor_extras(simulate):
    def generate(prompts, grammars, max_tokens, temperature, seeds):
        assert grammars == [None] and "depend_on" in prompts[0][1]["content"]
        return [Generated("<response>anything</response>")]

    assert simulate(generate, mode="paper").simulate(weather("Oslo"), TOOLS).text == "anything"


@pytest.mark.skipif(not grammar.available(), reason="the extra `grammar` (llguidance) is not installed")
def test_a_tool_whose_schema_has_no_grammar_is_asked_without_one(simulate):
    """A float below an integer beyond floats: no float holds their distance."""
    response = {"type": "number", "minimum": 0.5, "maximum": 10**400}
    tools = ToolSet.load([{"name": "f", "parameters": {"type": "object"}, "response": response}])
    simulator = simulate(lambda prompts, *_: [Generated("0.75")] * len(prompts), timeout=20.0)
    for group in ("g", "h"):
        assert simulator.simulate(ToolCall("f", {}), tools, Context(group)).text == "0.75"
    assert simulator.metrics()["local/unconstrained"] == 2


@pytest.mark.skipif(not grammar.available(), reason="the extra `grammar` (llguidance) is not installed")
@pytest.mark.parametrize("state", ["none", "kv"])
def test_random_weights_give_valid_observations(simulate, state):
    from slca.chat.tokenizer import load
    from tests.sgls.sampling import random_model

    calls = [weather("Oslo"), ToolCall("free_form", {"q": "x"}), ToolCall("notes.get", {"id": "7"}), ToolCall("notes.list", {})]
    replays = [(ToolCall("free_form", {"q": "other"}), '{"answer": 1, "source": "b"}')]
    simulator = simulate(random_model(load("tiny")), state=state, max_tokens=1200, replays=replays)
    context = Context("g")
    for call in calls:
        observation = simulator.simulate(call, TOOLS, context)
        assert observation.status == "ok" and observation.cost["regenerations"] == 0, observation
        json.loads(observation.text)
    assert "answer" in simulator.simulate(calls[1], TOOLS, Context("g")).text
    assert "local/unconstrained" not in simulator.metrics()
