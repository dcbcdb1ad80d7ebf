"""The oracle that is told no entry: it finds its place by the conversation."""

from types import SimpleNamespace

import pytest

from slca.evals.bfcl_answers import decoded, oracle
from slca.evals.bfcl_generate import multi_turn, specs
from slca.evals.bfcl_served import Known, through_server
from slca.types import ToolCall
from tests.evals.test_bfcl import CD, FUNCTIONS, Files, entry, written


def row(messages, functions=FUNCTIONS):
    return SimpleNamespace(messages=messages, tools=specs(functions), constraint=None)


def test_entry_turn_and_step_are_found():
    other = entry("multi_turn_base_1", 2, [[{"name": "cd", "arguments": {"folder": "b"}}], []])
    other["question"][0] = [{"role": "user", "content": "another opening"}]
    entries = [entry("multi_turn_base_0", 2), other]
    known = Known(entries, oracle(entries))

    def calls(messages):
        return [
            ToolCall(call["function"]["name"], call["function"]["arguments"])
            for call in known.reply(row(messages)).get("tool_calls", [])
        ]

    opening = [{"role": "user", "content": "turn 0"}]
    called = [*opening, {"role": "assistant", "content": "", "tool_calls": [CD.message()]}, {"role": "tool", "content": "ok"}]
    second = [*called, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "turn 1"}]
    assert calls(opening) == [CD] and calls(called) == [] and calls(second) == [CD]
    assert calls([{"role": "user", "content": "another opening"}]) == [ToolCall("cd", {"folder": "b"})]
    longer = entry("multi_turn_base_2", 1, [[{"name": "cd", "arguments": {"folder": "c"}}]])
    longer["question"][0] = [opening[0], {"role": "assistant", "content": "Where?"}, {"role": "user", "content": "To c."}]
    known = Known([longer, *entries], oracle([longer, *entries]))  # an opening that holds an earlier answer
    assert calls(longer["question"][0]) == [ToolCall("cd", {"folder": "c"})] and calls(opening) == [CD]
    with pytest.raises(ValueError, match="no entry"):
        known.reply(row([{"role": "user", "content": "never heard"}]))
    with pytest.raises(ValueError, match="no entry"):
        known.reply(row(opening, []))


def test_answers_by_way_of_the_server_are_the_oracles():
    pytest.importorskip("fastapi", reason="the server needs fastapi")
    entries = [entry("multi_turn_base_0", 2), entry("multi_turn_base_1", 1)]
    entries[1]["question"][0] = [{"role": "user", "content": "another opening"}]
    direct = multi_turn(entries, oracle(entries), Files(), "official", "hermes")
    with through_server(entries, oracle(entries), 2) as chat:
        served = multi_turn(entries, chat, Files(), "official", "hermes")
    assert [answer.result for answer in served] == [answer.result for answer in direct] and not any(a.skipped for a in served)
    assert decoded(served[0].result[0][0]) == decoded(written([CD]))
