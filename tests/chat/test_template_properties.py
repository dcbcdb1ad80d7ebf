"""Contracts 1 and 2 on random conversations: incremental ids equal the full rendering, hostile content structures nothing."""

from hypothesis import strategies as st

from slca.types import ToolCall
from tests.chat.conversations import TOOLS, assistant, result, system, user
from tests.chat.families import KEEPS_PREFIXES, OPTIONS, PARALLEL, template
from tests.chat.properties import attacks, property_tests
from tests.chat.test_template import control_ids, reference, stream

WORDS = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=12)
HARMLESS = st.lists(WORDS, min_size=1, max_size=4).map(
    lambda words: "a" + " ".join(words).replace("<", "(").replace("|", "!") + "b"
)
VALUES = st.none() | st.booleans() | st.integers(-999, 999) | HARMLESS
ARGUMENTS = st.dictionaries(HARMLESS, VALUES | st.lists(VALUES, max_size=2), max_size=3)


@st.composite
def conversations(draw, content, parallel=True):
    messages = [system(draw(content))] if draw(st.booleans()) else []
    messages.append(user(draw(content)))
    for turn in range(draw(st.integers(1, 3))):
        calls = [
            ToolCall(draw(st.sampled_from(["get_weather", "get_time"])), draw(ARGUMENTS), f"call_{turn:03d}{k}")
            for k in range(draw(st.integers(0, 2 if parallel else 1)))
        ]
        messages.append(assistant("" if calls else draw(content), *calls))
        messages += [result(call, draw(content)) for call in calls] or [user(draw(content))]
    return [*messages, assistant(draw(content))] if messages[-1]["role"] != "assistant" else messages


@st.composite
def tool_lists(draw, content):
    kinds = st.sampled_from(["string", "integer", "boolean"])
    properties = st.dictionaries(content, st.fixed_dictionaries({"type": kinds, "description": content}), max_size=3)
    return [
        {**TOOLS[0], "function": {"name": name, "description": draw(content), "parameters": {"properties": draw(properties)}}}
        for name in draw(st.lists(content, max_size=3, unique=True))
    ]


@property_tests(data=st.data(), name=st.sampled_from(KEEPS_PREFIXES))
def incremental_equals_full(data, name):
    t = template(name)
    messages = data.draw(conversations(HARMLESS, parallel=name in PARALLEL))
    tools = data.draw(tool_lists(HARMLESS))
    ids, borders = stream(t, messages, tools)
    full = t.ids(messages, tools)
    assert full[: len(ids)] == ids
    if name != "tiny":
        assert full == reference(name, messages, tools, generation_prompt=False)
    assert all(ids[end - 1] in t.stop_ids for who, end in borders if who == "policy")


test_incremental_equals_full, test_incremental_equals_full_nightly = incremental_equals_full


@property_tests(data=st.data(), name=st.sampled_from(list(OPTIONS)), hostile=attacks())
def hostile_content_injects_nothing(data, name, hostile):
    t = template(name)
    messages = data.draw(conversations(HARMLESS, parallel=name in PARALLEL))
    places = [i for i, message in enumerate(messages) if message["content"]]
    i = data.draw(st.sampled_from(places))
    hostile = "a" + hostile + "b"
    attacked = [*messages[:i], {**messages[i], "content": hostile}, *messages[i + 1 :]]
    ids = t.ids(attacked, TOOLS, generation_prompt=True)
    assert control_ids(t, ids) == control_ids(t, t.ids(messages, TOOLS, generation_prompt=True))
    if messages[i]["role"] == "user":  # results may be JSON-escaped by the template
        kept = t.tokenizer.decode(t.tokenizer.encode(hostile))  # Qwen normalises to NFC, SmolLM2 lacks some bytes
        assert kept in t.tokenizer.decode(ids)


test_hostile_content_injects_nothing, test_hostile_content_injects_nothing_nightly = hostile_content_injects_nothing


@property_tests(name=st.sampled_from(list(OPTIONS)), hostile=attacks().map("a{}b".format))
def hostile_tools_and_calls_inject_nothing(name, hostile):
    t, controls = template(name), []
    for text in (hostile, "harmless"):
        parameters = {"type": "object", "properties": {text: {"description": text, "enum": [text]}}}
        tool = {"type": "function", "function": {"name": text, "description": text, "parameters": parameters}}
        call = ToolCall(text, {text: [text, {"k": text}]}, "call_0")
        messages = [user("?"), assistant("", call), result(call, "4"), assistant("Done.")]
        ids, _ = stream(t, messages, [tool])
        controls.append(control_ids(t, ids))
    assert controls[0] == controls[1]


test_hostile_tools_inject_nothing, test_hostile_tools_inject_nothing_nightly = hostile_tools_and_calls_inject_nothing
