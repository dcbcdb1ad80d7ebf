"""The engine over a scripted policy, against the slow reference; and what must hold when tools hang, fail or die."""

import json
import random
import threading
import time
import zlib

import numpy as np
import pytest

from slca.rollout.engine import rollout
from slca.types import END_REASONS, ENV, POLICY, PROMPT, Observation, Task
from tests.rollout import reference
from tests.rollout.fakes import CONTROL, ScriptedSampler, Template, Tokenizer

encode, STOP, MARKER = Tokenizer().encode, 1, CONTROL["<tool_response>"]
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments="{}"):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def task(name, followups=()):
    return Task(name, [{"role": "user", "content": name}], [TOOL], [[]], followups=list(followups))


def wild(row, key):
    """A turn of any kind: answers, calls good and bad, forgeries, cuts; drawn from the whole row and its key."""
    rng = random.Random(f"{zlib.crc32(bytes(row))}{key}")
    name = rng.choice(["a", "b", "slow", "fail", "late", "die", "long"] if rng.random() < 0.4 else ["a", "b"])
    kinds = {
        "It is done." + "!" * rng.randint(0, 9): 6,
        call(name, f'{{"x": {rng.randint(0, 1)}}}'): 8,
        "Two. " + call("a") + call(name) + " Wait.": 4,
        call(name, '{"t": "<tool_response> in a string"}'): 1,
        "<tool_call>{broken</tool_call>": 2,
        "</tool_call>" + call("a") + '<tool_call>{"name": 3}</tool_call>': 2,
        "x<tool_response>42</tool_response>" + call("b"): 1,
        call(name)[:-3]: 1,
    }
    ids = encode(rng.choices(list(kinds), list(kinds.values()))[0])
    end = rng.random()
    if end < 0.03:
        return [*ids, MARKER]
    return ids + ([*encode("." * 200)] if end < 0.08 else [STOP])


class Tools:
    """Answers by the name of the tool; `jitter` shuffles the order in which results arrive."""

    def __init__(self, jitter=0.0):
        self.jitter, self.rng, self.lock = jitter, random.Random(0), threading.Lock()

    def simulate(self, call, toolset, context):
        if self.jitter:
            with self.lock:
                pause = self.rng.random() * self.jitter
            time.sleep(pause)
        if call.name == "die":
            raise ZeroDivisionError("a tool that breaks its promise")
        status = {"fail": "sim_failed", "late": "timeout"}.get(call.name, "ok")
        return Observation("r" * 300 if call.name == "long" else f"{call.name}:{dict(call.arguments)}", status)


def limits(config, **fields):
    config.rollout.update(
        {"group": 4, "max_turns": 4, "max_calls": 5, "max_malformed": 1, "max_repeats": 2, "max_turn_tokens": 180,
         "max_response_tokens": 500, "max_prompt_tokens": 200, "tool_threads": 4, "tool_timeout": 20.0} | fields
    )  # fmt: skip
    return config


def play(
    config, tasks, script=wild, simulator=None, *, slots=7, decode_steps=6, cache_length=600, template=None, shared=(0, 0),
    **options,
):  # fmt: skip
    """shared: slots of a place, and tokens of their own."""
    sampler = ScriptedSampler(
        script, slots=slots, decode_steps=decode_steps, cache_length=cache_length, shared_slots=shared[0], own_length=shared[1]
    )
    options = {"seed": 3, "step": 9} | options
    return rollout(None, tasks, sampler, template or Template(), simulator or Tools(), config, **options)


def same(a, b):
    keys = ("tokens", "writer", "turn", "logprob")
    return a.end == b.end and a.messages == b.messages and all(np.array_equal(getattr(a, k), getattr(b, k)) for k in keys)


def against_reference(config, count, slots, decode_steps, shared=(0, 0)):
    tasks = [task(f"t{i}", ["and then?"] * (i % 3)) for i in range(count)]
    stats = {}
    options = dict(slots=slots, decode_steps=decode_steps, shared=shared, stats=stats)
    episodes = play(config, tasks, simulator=Tools(jitter=0.002), **options)
    assert [(e.task.id, e.group, e.sample) for e in episodes] == [(t.id, g, s) for g, t in enumerate(tasks) for s in range(4)]
    for episode in episodes:
        prompt = len(Template().prompt(episode.task.messages, episode.task.tools))
        truth = reference.run(
            wild, episode.task, episode.sample, Template(), Tools().simulate, config, seed=3, step=9,
            capacity=min(600, prompt + shared[1]) if shared[0] else 600,
        )  # fmt: skip
        tokens, writer, turn, logprob = zip(*truth.row)
        assert episode.end == truth.end, (episode.task.id, episode.sample)
        assert episode.tokens.tolist() == list(tokens) and episode.writer.tolist() == list(writer)
        assert episode.turn.tolist() == list(turn) and np.allclose(episode.logprob, logprob, atol=1e-6)
        assert episode.observations == truth.results
        assert len(episode.turns) == len(episode.observations) == len(episode.user_turn)
        assert episode.writer[-1] == POLICY  # contract 5
    assert sum(stats[f"end/{reason}"] for reason in END_REASONS) == len(episodes)
    return episodes, stats


def test_random_episodes_equal_the_reference(config):
    episodes, stats = against_reference(limits(config), 60, slots=7, decode_steps=6)
    seen = {e.end for e in episodes}
    assert seen >= {"answered", "max_turns", "truncated", "malformed_limit", "forged", "sim_failed", "dead", "context_full"}
    assert stats["prompts_prefilled"] == 60 and stats["rows_inserted"] == 240
    policy = sum(int((e.writer == POLICY).sum()) for e in episodes)
    assert policy <= stats["tokens_decoded"]  # what a forged marker cuts off was decoded too
    # a suffix that was appended and then taken back (a row that died later) is the only other difference
    assert stats["tokens_appended"] >= sum(int((e.writer == ENV).sum()) for e in episodes)
    assert 0 < stats["occupancy"] <= 1 and stats["compiles"] == stats["compactions"] == 0


def test_with_shared_prompts_too(config):
    """Places of 3 for groups of 4, and less room behind a prompt than the response may have: `context_full` is the row's own."""
    episodes, stats = against_reference(limits(config), 30, slots=9, decode_steps=6, shared=(3, 300))
    assert stats["prompts_prefilled"] == 30 and stats["rows_inserted"] == 120
    full = [len(e.tokens) - e.info["prompt_tokens"] for e in episodes if e.end == "context_full"]
    assert full and max(len(e.tokens) - e.info["prompt_tokens"] for e in episodes) <= 300
    prompts = sum({e.group: e.info["prompt_tokens"] for e in episodes}.values())
    assert stats["tokens_prefilled"] == prompts


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
def test_a_thousand_episodes_with_shared_prompts(config, part):
    against_reference(
        limits(config, max_calls=3 + part, max_turns=2 + part % 4), 250, slots=4 * (1 + 3 * part), decode_steps=3 + part,
        shared=((1, 2, 4, 2)[part], (250, 300, 350, 600)[part]),
    )  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_episodes_equal_the_reference(config, part):
    against_reference(
        limits(config, max_calls=3 + part, max_turns=2 + part % 4), 250, slots=1 + 9 * part, decode_steps=3 + part
    )


def test_contract_11_order_batch_and_slots_change_no_row(config):
    tasks = [task(f"t{i}", ["more"] * (i % 2)) for i in range(8)]
    whole = {(e.task.id, e.sample): e for e in play(limits(config), tasks)}
    for part, slots, steps in ((tasks[::-1], 3, 1), (tasks[2:5], 64, 32)):
        assert all(same(e, whole[e.task.id, e.sample]) for e in play(config, part, slots=slots, decode_steps=steps))
    assert all(same(e, whole[e.task.id, e.sample]) for e in play(config, tasks[::-1], slots=6, shared=(2, 600)))
    assert any(not same(e, whole[e.task.id, e.sample]) for e in play(config, tasks, step=10))
    assert any(not same(e, whole[e.task.id, e.sample]) for e in play(config, tasks, seed=4))


def test_p13_samples_of_a_prompt_and_a_repeated_task_differ(config):
    def chatty(row, key):
        return [*encode(f"{key}"[:50]), STOP]

    episodes = play(limits(config), [task("t"), task("t")], chatty)
    assert len({tuple(e.tokens) for e in episodes}) == 8
    assert [e.group for e in episodes] == [0] * 4 + [1] * 4


def test_p15_a_turn_ends_at_any_id_of_the_stop_set(config, tmp_path):
    """P15: tokenizer, generation config (a list) and the template's turn end together; the sampler is given them all, and a row that
    ends with any of them is an answer whose last token is the policy's."""
    from slca.chat import template, tokenizer
    from slca.rollout.episode import Rules
    from tests.chat.families import TOKENIZERS
    from tests.chat.families import template as of_family

    for file in (TOKENIZERS / "qwen3").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [151643, 151662]}')
    qwen = template.Template(tokenizer.load(str(tmp_path)))
    stops = Rules.of(config, qwen, capacity=100, longest_prompt=50).sampling_stops
    assert {151643, 151645, 151662} <= set(stops)  # <|im_end|> is the tokenizer's own
    gemma = of_family("gemma")
    assert {gemma.tokenizer.decode([i]) for i in Rules.of(config, gemma, capacity=9, longest_prompt=9).stop_ids} == {
        "<eos>", "<end_of_turn>",
    }  # fmt: skip

    ends = (STOP, *encode("#%"))

    class Three(Template):
        stop_ids = ends

    def script(row, key):
        return [*encode("ok"), ends[key % 3], *encode("beyond")]

    episodes = play(limits(config), [task(f"t{i}") for i in range(4)], script, template=Three())
    assert {int(e.tokens[-1]) for e in episodes} == set(ends) and {e.end for e in episodes} == {"answered"}
    assert all(e.writer[-1] == POLICY and (e.writer == POLICY).sum() == 3 for e in episodes)


def test_contract_13_dead_rows_stay_in_their_group(config):  # G8
    class Broken(Template):
        def suffix(self, messages, new):
            if len(messages) > 2 and messages[0]["content"] == "bad":
                raise RuntimeError("template")
            return super().suffix(messages, new)

    def once(row, key):
        first = Tokenizer().decode(row).count("assistant\n") == 1
        return [*encode(call("a") if first else "done"), STOP]

    bad, good = task("bad"), task("good")
    bad.messages.insert(0, {"role": "system", "content": "bad"})
    episodes = play(limits(config), [bad, good], once, template=Broken())
    assert [e.end for e in episodes] == ["dead"] * 4 + ["answered"] * 4
    assert episodes[0].info["error"] == "RuntimeError: template" and not episodes[0].scored
    assert episodes[0].writer[-1] == POLICY


def test_a_prompt_that_cannot_be_rendered_or_is_too_long(config):
    class Broken(Template):
        def prompt(self, messages, tools):
            if messages[0]["content"] == "bad":
                raise KeyError("content")
            return super().prompt(messages, tools)

    def answer(row, key):
        return [*encode("ok"), STOP]

    stats = {}
    tasks = [task("bad"), task("x" * 300), task("fine")]
    episodes = play(limits(config), tasks, answer, template=Broken(), stats=stats)
    assert [e.end for e in episodes[::4]] == ["dead", "context_full", "answered"]
    assert stats["end/dead"] == stats["end/context_full"] == 4 and stats["prompts_prefilled"] == 1
    assert all(len(e.tokens) == 0 and len(e.turns) == 0 for e in episodes[:8])


def test_g6_a_tool_gets_an_object_or_is_not_called(config):
    """G6: arguments are typed once, by the parser; JSON text in their place is an error for the policy to read."""
    got = []

    class Strict(Tools):
        def simulate(self, call, toolset, context):
            got.append(call.arguments)
            return super().simulate(call, toolset, context)

    def script(row, key):
        first = Tokenizer().decode(row).count("assistant\n") == 1
        return [*encode(call("a", json.dumps('{"x": 1}')) + call("a", '{"x": 1}') if first else "done"), STOP]

    episodes = play(limits(config), [task("t")], script, Strict())
    assert got == [{"x": 1}] * 4 and all(type(arguments) is dict for arguments in got)
    assert all(e.end == "answered" and e.turns[0].errors for e in episodes)


def test_g4_no_turn_no_tool(config):
    episodes = play(limits(config, max_turns=0), [task("t")], simulator=None)
    assert [e.end for e in episodes] == ["max_turns"] * 4


@pytest.mark.parametrize("field", ["max_turn_tokens", "max_response_tokens"])
def test_g4_no_token_is_none_not_unlimited(config, field):
    episodes = play(limits(config, **{field: 0}), [task("t")])
    assert [e.end for e in episodes] == ["context_full"] * 4 and set(episodes[0].writer) == {PROMPT}


def test_tools_wait_while_other_rows_decode(config):
    """One row's tool answers only after another row has finished: an engine that waits for it first would time out."""
    finished = threading.Event()

    class Gate:
        def simulate(self, call, toolset, context):
            return Observation("open" if finished.wait(15) else "shut")

    def script(row, key):
        text = Tokenizer().decode(row)
        return [*encode(call("a") if "gate" in text and "tool\n" not in text else "word " * 30), STOP]

    def progress(ended, total):
        if ended:
            finished.set()

    stats = {}
    episodes = play(limits(config), [task("gate"), task("plain")], script, Gate(), group=1, progress=progress, stats=stats)
    assert [e.end for e in episodes] == ["answered"] * 2 and episodes[0].observations[0][0].text == "open"
    assert stats["time/tool"] > 0 and stats["time/tool_exposed"] <= stats["time/rollout"]


def test_g5_hung_tools_neither_starve_the_pool_nor_end_the_row(config):
    forever = threading.Event()

    class Hangs:
        def simulate(self, call, toolset, context):
            if call.name == "hang":
                forever.wait(60)
            return Observation("ok")

    def script(row, key):
        text = Tokenizer().decode(row)
        if "tool\n" in text:
            return [*encode("sorry"), STOP]
        return [*encode(call("a") + call("hang") if "h" in text.split("\n")[1] else call("a")), STOP]

    tasks = [task(f"h{i}") for i in range(5)] + [task(f"n{i}") for i in range(5)]
    start = time.monotonic()
    episodes = play(limits(config, tool_threads=2, tool_timeout=0.15), tasks, script, Hangs(), slots=40)
    seconds = time.monotonic() - start
    forever.set()
    assert [e.end for e in episodes] == ["answered"] * 40  # F14: the episode goes on
    assert [o.status for o in episodes[0].observations[0]] == ["ok", "timeout"]
    assert "error: timeout" in Tokenizer().decode(episodes[0].tokens)
    assert seconds < 5  # 20 hung calls over 2 threads: 10 deadlines and some work


def test_f14_parallel_results_are_rendered_in_call_order(config):
    first = threading.Event()

    class Reversed:
        def simulate(self, call, toolset, context):
            if call.name == "c1":
                first.wait(10)
            first.set()
            return Observation(f"from {call.name}")

    def script(row, key):
        return [*encode("done" if "tool\n" in Tokenizer().decode(row) else call("c1") + call("c2")), STOP]

    (episode,) = play(limits(config), [task("t")], script, Reversed(), group=1)
    text = Tokenizer().decode(episode.tokens)
    assert [o.text for o in episode.observations[0]] == ["from c1", "from c2"]
    assert 0 < text.index("from c1") < text.index("from c2")


def test_stateful_calls_run_one_after_the_other(config):
    config.sgls.state = "kv"

    class Store:
        def simulate(self, call, toolset, context):
            seen = dict(context.state)
            time.sleep(0.002)
            context.state[call.name] = len(seen)
            return Observation(str(sorted(seen)))

    def script(row, key):
        return [*encode("done" if "tool\n" in Tokenizer().decode(row) else call("a") + call("b") + call("c")), STOP]

    (episode,) = play(limits(config), [task("t")], script, Store(), group=1)
    assert [o.text for o in episode.observations[0]] == ["[]", "['a']", "['a', 'b']"]


def test_a_call_that_was_given_up_writes_nothing_any_more(config):
    """Its answer was a timeout: what it does later is no part of the rollout, whose next calls must not see it either."""
    config.sgls.state = "kv"
    reading, written = threading.Event(), threading.Event()

    class Late:
        def simulate(self, call, toolset, context):
            if call.name == "save":
                reading.wait(30)
                context.state["note"] = "new"
                context.transcript.append((call, Observation("late")))
                written.set()
                return Observation("saved")
            reading.set()
            written.wait(30)
            return Observation(f"{context.state} {[c.name for c, _ in context.transcript]}")

    def script(row, key):
        turn = Tokenizer().decode(row).count("assistant\n")
        return [*encode(["", call("save"), call("read"), "done"][turn]), STOP]

    (episode,) = play(limits(config, tool_threads=2, tool_timeout=1.0), [task("t")], script, Late(), group=1)
    assert written.is_set() and episode.observations[0][0].status == "timeout"
    assert episode.observations[1][0].text == "{} ['save']"


def test_no_two_calls_of_a_run_have_the_same_names(config):
    """What the simulator's draws are named by: the step, the copy of a task in it, the sample, what came before, the call."""
    names = []

    class Spy:
        def simulate(self, call, toolset, context):
            names.append(
                (context.seed, context.step, context.group, context.copy, context.sample, len(context.transcript), context.call)
            )
            return Observation("ok")

    def script(row, key):
        turn = Tokenizer().decode(row).count("assistant\n")
        return [*encode("done" if turn == 3 else call("same") * 2), STOP]

    for step in (0, 7):
        play(limits(config, max_repeats=9), [task("x"), task("y"), task("x")], script, Spy(), group=2, step=step)
    assert len(names) == len(set(names)) == 2 * 3 * 2 * 2 * 2  # steps, groups, samples, turns, calls
    assert {(step, group, copy) for _, step, group, copy, *_ in names} == {
        (step, *which) for step in (0, 7) for which in (("x", 0), ("x", 1), ("y", 0))
    }


def test_a_deterministic_simulator_makes_the_whole_rollout_repeat(config):
    class Scripted(Tools):
        deterministic = True

    tasks, runs = [task(f"t{i}") for i in range(10)], []
    for _ in range(2):
        stats = {}
        episodes = play(limits(config), tasks, simulator=Scripted(jitter=0.003), stats=stats)
        runs.append((episodes, {name: value for name, value in stats.items() if not name.startswith("time/")}))
    assert runs[0][1] == runs[1][1] and all(map(same, runs[0][0], runs[1][0]))


def test_greedy_is_handed_to_the_sampler(config):
    seen = set()

    class Spy(ScriptedSampler):
        def decode(self, params, state, *, temperature, **options):
            seen.update((params, float(one)) for one in temperature)  # one a slot
            return super().decode(params, state, temperature=temperature, **options)

    episodes = rollout(
        "params", [task("t")], Spy(wild), Template(), Tools(), limits(config), seed=0, step=0, temperature=0.0, group=2
    )
    assert seen == {("params", 0.0)} and [e.temperature for e in episodes] == [0.0, 0.0]


def test_context_names_the_group_and_holds_the_transcript(config):
    contexts = []

    class Spy(Tools):
        def simulate(self, call, toolset, context):
            contexts.append((context.group, context.sample, [c.name for c, _ in context.transcript], sorted(toolset.tools)))
            return super().simulate(call, toolset, context)

    def script(row, key):
        turns = Tokenizer().decode(row).count("assistant\n")
        return [*encode("done" if turns == 3 else call(f"t{turns}")), STOP]

    play(limits(config), [task("x")], script, Spy(), group=1)
    assert contexts == [("x", 0, [], ["ping"]), ("x", 0, ["t1"], ["ping"])]


def test_no_tasks_no_rows(config):
    assert play(limits(config), []) == []


@pytest.fixture(scope="module")
def real():
    """A random two-layer model over the tiny tokenizer; 16 stop ids, so that its noise makes turns."""
    import jax

    from configs.default import get_config
    from slca.chat import template, tokenizer
    from slca.policy import transformer
    from slca.policy.config import ModelConfig
    from slca.tasks.synthesize import tasks

    config = get_config()
    config.model.update({"width": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16, "ff": 64})
    chat = template.Template(tokenizer.load("tiny"))
    chat.stop_ids = (*chat.stop_ids, *range(300, 309))
    model = ModelConfig.random(config.model, chat.tokenizer.size)
    some = [t for t in tasks(0, "train", 40, kinds=("two_turn", "ask"), max_tools=2) if t.followups][:3]
    return limits(config, group=3, max_prompt_tokens=500), model, transformer.init(model, jax.random.key(0)), chat, some


def sampled(real, *, slots, decode_steps, temperature, **options):
    from slca.rollout.sampler import Sampler
    from slca.sgls.simulator import Simulator

    config, model, params, chat, some = real
    sampler = Sampler(
        model, slots=slots, cache_length=1024, prompt_buckets=(512,), suffix_buckets=(64,), decode_steps=decode_steps, **options
    )
    simulator = Simulator.from_config(config.sgls)
    episodes = rollout(params, some, sampler, chat, simulator, config, seed=0, step=0, temperature=temperature)
    assert sampler.compiles() <= len(sampler.programs)
    return episodes


@pytest.mark.parametrize("options", [{}, {"shared_slots": 2}])
def test_contract_10_logprobs_are_those_of_one_plain_forward(real, options):
    import jax
    import jax.numpy as jnp

    from slca.policy.transformer import Transformer, unembed

    _, model, params, _, _ = real
    episodes = sampled(real, slots=4, decode_steps=8, temperature=0.8, **options)
    assert max(len(e.turns) for e in episodes) > 1 and {len(e.tokens) for e in episodes} != {0}
    forward = jax.jit(
        lambda t: Transformer(model).apply({"params": params}, t, jnp.arange(t.size)[None]) @ unembed(params, model)
    )
    for e in episodes:
        padded = np.pad(e.tokens, (0, 1024 - len(e.tokens)))[None]
        table = jax.nn.log_softmax(forward(padded)[0] / 0.8)
        policy = np.flatnonzero(e.writer == POLICY)
        assert np.abs(e.logprob[policy] - table[policy - 1, e.tokens[policy]]).max() < 1e-4
        assert not e.logprob[e.writer != POLICY].any() and e.writer[-1] == POLICY


def test_contract_11_with_a_model_slots_and_steps_change_no_row(real):
    one, other = (sampled(real, slots=s, decode_steps=n, temperature=1.0) for s, n in ((4, 8), (9, 5)))
    shared = sampled(real, slots=4, decode_steps=8, temperature=1.0, shared_slots=2)
    for a, b in [*zip(one, other), *zip(one, shared)]:
        assert a.end == b.end and np.array_equal(a.tokens, b.tokens) and np.allclose(a.logprob, b.logprob, atol=1e-4)


def test_g7_new_weights_meet_no_old_cache(real):
    """G7: on one sampler rows under other parameters, then the first again: each what a fresh sampler makes of them."""
    import jax

    from slca.rollout.sampler import Sampler
    from slca.sgls.simulator import Simulator

    config, model, params, chat, some = real
    pool, fresh = (Sampler(model, slots=4, cache_length=640, prompt_buckets=(512,), decode_steps=8) for _ in range(2))
    other = jax.tree.map(lambda x: -x, params)

    def run(sampler, weights):
        simulator = Simulator.from_config(config.sgls)
        return rollout(weights, some[:1], sampler, chat, simulator, config, seed=0, step=0, temperature=1.0)

    first, between, again, alone = run(pool, params), run(pool, other), run(pool, params), run(fresh, other)
    assert all(same(a, b) for a, b in zip(first, again)) and all(same(a, b) for a, b in zip(between, alone))
    assert not any(same(a, b) for a, b in zip(first, between))
