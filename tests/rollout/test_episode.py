"""The state machine, turn by turn, with a character-level template: every token's writer and turn is known by hand."""

import numpy as np
import pytest

from slca.rollout import episode as machine
from slca.rollout.episode import Act, End, Generate
from slca.types import ENV, POLICY, PROMPT, Context, Observation, Task, ToolCall
from tests.rollout.fakes import FIRST, Template

TEMPLATE = Template()
STOP = TEMPLATE.stop_ids[0]
MARKER = TEMPLATE.tokenizer.control["<tool_response>"]


def call(name="ping", arguments="{}"):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


class Driver:
    """One episode with `config.rollout` fields overridden; `say` is a policy turn given as text."""

    def __init__(self, config, *, followups=(), capacity=10_000, **fields):
        config.rollout.update(
            {"max_turn_tokens": 1000, "max_response_tokens": 5000, "max_prompt_tokens": 5000, "max_calls": 6} | fields
        )
        task = Task("t", [{"role": "user", "content": "go"}], [], [[]], followups=list(followups))
        self.rules = machine.Rules.of(config, TEMPLATE, capacity=capacity, longest_prompt=capacity)
        self.state = machine.new(task, 0, 0, Context())
        self.action = machine.begin(self.state, TEMPLATE.prompt(task.messages, []), self.rules)

    def say(self, text, end=(STOP,)):
        ids = TEMPLATE.tokenizer.encode(text) + list(end)
        self.action = machine.sampled(self.state, ids, [-0.5] * len(ids), self.rules)
        return self.action

    def hear(self, *texts, status="ok"):
        self.action = machine.observed(self.state, [Observation(text, status) for text in texts], self.rules)
        return self.action

    def record(self):
        return machine.episode(self.state, 1.0)


def view(episode):
    """The row as text with one letter a token for its writer (P prompt, p policy, e environment)."""
    return TEMPLATE.tokenizer.decode(episode.tokens), "".join("Ppe"[w] for w in episode.writer)


def test_answered_at_once(config):
    run = Driver(config)
    assert isinstance(run.action, Generate) and run.action.budget == 1000
    assert run.say("hi") == End("answered")
    text, writers = view(run.record())
    prompt = "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    assert text == prompt + "hi<|im_end|>"
    assert writers == "P" * (len(writers) - 3) + "ppp"  # T6, T21: the sampled stop token is the policy's (contract 4)
    assert run.record().turn.tolist()[-4:] == [-1, 0, 0, 0]
    assert run.record().logprob.tolist()[-4:] == [0, -0.5, -0.5, -0.5]


def test_tool_turn_masks_and_messages(config):
    run = Driver(config)
    assert run.say("I ask. " + call("ping", '{"a": 1}')) == Act([ToolCall("ping", {"a": 1}, "call_0_0")])
    suffix = "\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
    action = run.hear("42")
    assert TEMPLATE.tokenizer.decode(action.suffix) == suffix  # T1, T22: the newline after the stop token is environment
    assert run.say("42!") == End("answered")
    episode = run.record()
    text, writers = view(episode)
    first = "I ask. " + call("ping", '{"a": 1}')
    assert text.endswith(first + "<|im_end|>" + suffix + "42!<|im_end|>")
    assert writers == "P" * episode.prompt_length + "p" * (len(first) + 1) + "e" * len(action.suffix) + "p" * 4
    assert episode.turn[episode.writer == POLICY].tolist() == [0] * (len(first) + 1) + [1] * 4
    assert episode.messages[1:] == [
        {"role": "assistant", "content": "I ask.", "tool_calls": [ToolCall("ping", {"a": 1}, "call_0_0").message()]},
        {"role": "tool", "content": "42", "tool_call_id": "call_0_0", "name": "ping"},
        {"role": "assistant", "content": "42!"},
    ]
    assert episode.observations == [[Observation("42")], []] and episode.user_turn == [0, 0]
    assert run.state.context.transcript == [(ToolCall("ping", {"a": 1}, "call_0_0"), Observation("42"))]


def test_f09_length_counts_policy_tokens(config):
    run = Driver(config)
    run.say(call())
    run.hear("r")
    run.say("ok")
    episode = run.record()
    assert episode.info["policy_tokens"] == len(call()) + 1 + 3 == (episode.writer == POLICY).sum()
    assert np.flatnonzero(episode.writer == POLICY)[-1] == len(episode.tokens) - 1
    total = episode.info["prompt_tokens"] + episode.info["policy_tokens"] + episode.info["env_tokens"]
    assert total == len(episode.tokens)


def test_f14_results_in_call_order_and_a_timeout_goes_on(config):
    run = Driver(config)
    action = run.say(call("weather") + call("time"))
    assert [(c.name, c.id) for c in action.calls] == [("weather", "call_0_0"), ("time", "call_0_1")]
    late = Observation("error: timeout", "timeout")
    assert isinstance(machine.observed(run.state, [late, Observation("noon")], run.rules), Generate)
    assert [(m["name"], m["content"]) for m in run.state.messages[-2:]] == [("weather", "error: timeout"), ("time", "noon")]


def test_second_timed_out_turn_ends_unscored(config):
    run = Driver(config)
    run.say(call())
    assert isinstance(run.hear("late", status="timeout"), Generate)
    run.say(call("other"))
    assert run.hear("late", status="timeout") == End("tool_timeout")
    assert not run.record().scored and run.record().writer[-1] == POLICY


def test_followups_are_sent_after_turns_without_calls(config):
    run = Driver(config, followups=["and now?"])
    run.say(call())
    run.hear("1")
    action = run.say("one")
    assert TEMPLATE.tokenizer.decode(action.suffix) == "\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"
    assert run.say("done") == End("answered")
    assert run.record().user_turn == [0, 0, 1]
    assert [m["role"] for m in run.record().messages] == ["user", "assistant", "tool", "assistant", "user", "assistant"]


def test_g1_each_bad_call_gets_an_error_and_good_ones_run(config):
    run = Driver(config)
    bad = '<tool_call>{"name": "x", "arguments": 5}</tool_call>'
    action = run.say(bad + call("good") + "<tool_call>{oops</tool_call>")
    assert [(c.name, c.id) for c in action.calls] == [("good", "call_0_1")]
    assert isinstance(run.hear("fine"), Generate)
    tools = [m for m in run.state.messages if m["role"] == "tool"]
    assert [m.get("tool_call_id") for m in tools] == [None, "call_0_1", None]
    assert tools[0]["content"].startswith("error: not_object") and tools[2]["content"].startswith("error: malformed_json")
    assert tools[1]["content"] == "fine"
    assert run.state.observations == [[Observation("fine")]] and run.state.malformed == 0


def test_malformed_limit(config):
    run = Driver(config, max_malformed=2)
    for _ in range(2):
        assert isinstance(run.say("<tool_call>{</tool_call>"), Generate)
    assert run.say("<tool_call>{</tool_call>") == End("malformed_limit")
    assert run.record().info["malformed"] == 3 and run.record().writer[-1] == POLICY


def test_repeat_limit_counts_equal_calls_by_value(config):
    run = Driver(config, max_repeats=2)
    for arguments in ('{"a": 1, "b": 2}', '{"b": 2.0, "a": 1}'):
        run.say(call("ping", arguments))
        run.hear("r")
    assert run.say(call("ping", '{"b": 2, "a": 1}')) == End("repeat_limit")
    assert run.record().info["calls"] == 2


@pytest.mark.parametrize("limit, calls, end", [(0, 1, True), (1, 1, False), (1, 2, True), (2, 2, False)])
def test_max_calls_is_the_number_allowed(config, limit, calls, end):
    action = Driver(config, max_calls=limit).say("".join(call(f"t{i}") for i in range(calls)))
    assert (action == End("max_calls")) is end


def test_g4_zero_turns_means_none(config):
    run = Driver(config, max_turns=0)
    assert run.action == End("max_turns")
    episode = run.record()
    assert len(episode.tokens) == 0 and episode.turns == []


def test_calls_of_the_last_turn_never_run(config):
    run = Driver(config, max_turns=1)
    assert run.say(call()) == End("max_turns")
    run = Driver(config, max_turns=1, followups=["more"])
    assert run.say("answer") == End("max_turns")


def test_g3_truncated_turn_never_runs_its_calls(config):
    run = Driver(config)
    assert run.say(call() + "<tool_call>", end=()) == End("truncated")
    episode = run.record()
    assert episode.turns[0].truncated and episode.observations == [[]] and episode.info["calls"] == 0
    assert episode.tokens[-1] != STOP  # T6: no invented stop token


def test_stop_token_exactly_at_the_budget_is_no_truncation(config):
    run = Driver(config, max_turn_tokens=3)
    assert run.action.budget == 3
    assert run.say("ok") == End("answered")  # M18


def test_forged_marker_token_ends_the_row(config):
    run = Driver(config)
    assert run.rules.sampling_stops == (1, 2, 3, 4)
    assert run.say(call(), end=(MARKER,)) == End("forged")
    episode = run.record()
    assert episode.turns[0].forged and not episode.turns[0].truncated
    assert episode.tokens[-1] == MARKER and episode.writer[-1] == POLICY


def test_forged_marker_of_many_tokens_is_cut_after_its_end(config):
    run = Driver(config)
    inside = call("ping", '{"text": "<tool_response>"}')  # in a JSON string it is only text
    assert run.say(inside + "<tool_response>42</tool_response>") == End("forged")
    text, writers = view(run.record())
    assert text.endswith(inside + "<tool_response>") and writers[-1] == "p"
    assert len(run.record().logprob) == len(text.replace("<|im_start|>", "2").replace("<|im_end|>", "1"))
    run = Driver(config)
    assert isinstance(run.say(inside), Act)


def test_r9_budget_counts_from_the_first_policy_token(config):
    run = Driver(config, max_turn_tokens=100, max_response_tokens=150)
    assert run.action.budget == 100
    run.say(call())
    action = run.hear("42")
    used = len(call()) + 1 + len(action.suffix)
    assert action.budget == min(100, 150 - used) < 100


def test_t17_t18_a_result_that_does_not_fit_ends_the_row_before_it(config):
    used = len(call()) + 1
    suffix = len(TEMPLATE.suffix([], [{"role": "tool", "content": "42"}]))
    for spare, fits in ((machine.MIN_TURN_TOKENS, True), (machine.MIN_TURN_TOKENS - 1, False)):
        run = Driver(config, max_response_tokens=used + suffix + spare)
        run.say(call())
        action = run.hear("42")
        assert isinstance(action, Generate) is fits
        if fits:
            assert action.budget == spare
        else:
            episode = run.record()
            assert action == End("context_full") and episode.tokens[-1] == STOP and not (episode.writer == ENV).any()
            assert episode.observations == [[Observation("42")]] and episode.messages[-1]["role"] == "assistant"


def test_the_cache_bounds_the_row_too(config):
    prompt = len(TEMPLATE.prompt([{"role": "user", "content": "go"}], []))
    run = Driver(config, capacity=prompt + 50)
    assert run.action.budget == 50
    run.say(call()[:-1] + ">")
    assert run.hear("x" * 50) == End("context_full")


def test_86_a_long_prompt_is_refused_whole(config):
    run = Driver(config, max_prompt_tokens=5)
    assert run.action == End("context_full")
    episode = run.record()
    assert len(episode.tokens) == 0 and episode.info["prompt_tokens"] > 5 and episode.scored


def test_sim_failed_is_unscored(config):
    run = Driver(config)
    run.say(call())
    assert run.hear("?", status="sim_failed") == End("sim_failed")
    assert not run.record().scored


def test_dying_between_turns_takes_the_suffix_back(config):
    run = Driver(config)
    run.say(call())
    run.hear("42")
    assert machine.close(run.state, "dead") == End("dead")
    episode = run.record()
    assert set(episode.writer.tolist()) == {PROMPT, POLICY} and episode.tokens[-1] == STOP
    assert machine.close(run.state, "answered") == End("dead")


def test_t19_a_row_without_policy_tokens_is_whole(config):
    run = Driver(config)
    machine.close(run.state, "dead")
    episode = run.record()
    assert episode.info["policy_tokens"] == 0 and episode.prompt_length == len(episode.tokens) == episode.info["prompt_tokens"]


def test_ids_that_would_reencode_otherwise_stay(config):
    run = Driver(config)
    ids = [FIRST + ord("a"), FIRST + 127, STOP]
    machine.sampled(run.state, ids, [-1.0, -2.0, -3.0], run.rules)
    assert run.record().tokens[-3:].tolist() == ids and run.record().logprob[-3:].tolist() == [-1.0, -2.0, -3.0]
