"""Episodes built from turns, as the engine would record them."""

import numpy as np

from slca.types import ENV, POLICY, PROMPT, Block, CallError, Episode, Observation, Parsed, Task, ToolCall

SPEC = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
GOLD = ToolCall("weather", {"city": "Oslo"})
RESULT = Observation('{"city": "Oslo", "temperature": 17.4}')


def calls(*made, errors=0, text=""):
    """A turn of one tag a call, and `errors` further tags that could not be read."""
    bad = tuple(CallError("malformed_json", "x", block=len(made) + i) for i in range(errors))
    blocks = tuple(Block((call,)) for call in made) + tuple(Block((), (e,)) for e in bad)
    n = len(made) + errors
    return Parsed(calls=tuple(made), errors=bad, text=text, blocks=blocks, opened=n, closed=n)


def says(text):
    return Parsed(text=text)


def task(gold=((GOLD,),), facts=(("17.4",),), question="How warm is it in Oslo?", followups=(), kind="single", tools=(SPEC,)):
    return Task(
        "t", [{"role": "user", "content": question}], list(tools), [list(step) for step in gold], [list(f) for f in facts],
        followups=list(followups), kind=kind,
    )  # fmt: skip


def episode(the_task, turns, observations=None, end="answered", group=0, sample=0, user_turn=None, tokens_a_turn=4):
    """Prompt of 3 tokens, `tokens_a_turn` for each turn, 2 environment tokens between turns."""
    writer, turn = [PROMPT] * 3, [-1] * 3
    for k in range(len(turns)):
        if k:
            writer, turn = writer + [ENV] * 2, turn + [-1] * 2
        writer, turn = writer + [POLICY] * tokens_a_turn, turn + [k] * tokens_a_turn
    n = len(writer)
    if observations is None:
        observations = [[RESULT] * len(t.calls) for t in turns]
    return Episode(
        the_task, group, sample, np.arange(n, dtype=np.int32), np.asarray(writer, np.int8), np.asarray(turn, np.int16),
        np.zeros(n, np.float32), list(turns), observations, user_turn or [0] * len(turns), [], end,
    )  # fmt: skip


ANSWER = says("It is 17.4 degrees in Oslo.")


def good(**kw):
    return episode(task(), [calls(GOLD), ANSWER], **kw)


def demonstrated(the_task):
    """The episode that follows the task's demonstration word by word."""
    turns, observations, user_turn, user = [], [], [], 0
    for message in the_task.demo:
        if message["role"] == "assistant":
            made = [ToolCall(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
            turns.append(calls(*made, text=message.get("content", "")))
            observations.append([])
            user_turn.append(user)
        elif message["role"] == "tool":
            observations[-1].append(Observation(message["content"]))
        else:
            user += message["role"] == "user"
    return episode(the_task, turns, observations, user_turn=user_turn)
