"""Tasks: reproducible, correct by construction, and split without leaks."""

import itertools
import json
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca.tasks import catalog, words
from slca.tasks.schema import ToolSet, call_hash
from slca.tasks.synthesize import KINDS, SPLITS, builtin_source, tasks, tasks_from_specs
from slca.tasks.values import respond, response_seed

HELD_OUT = {spec["function"]["name"] for spec in catalog.specs(held_out=True)}


def calls(task):
    return [call for step in task.gold_steps for call in step]


def names(task):
    return [tool["function"]["name"] for tool in task.tools]


def said(task):
    return " ".join([task.messages[0]["content"], *task.followups])


def answers(task):
    return [m["content"] for m in task.demo if m["role"] == "assistant" and not m.get("tool_calls")]


def verify(task):
    """Everything that must hold for any task, checked from its own fields."""
    tools = ToolSet.load(task.tools)
    assert not tools.refused and len(set(names(task))) == len(task.tools)
    assert [m["role"] for m in task.messages] == ["user"]
    for call in calls(task):
        assert tools.check(call) == []
    ids = [call.id for call in calls(task)]
    assert len(set(ids)) == len(ids)
    # the demonstration is the gold: same calls in the same steps, answered as the scripted simulator answers
    shown = [m["tool_calls"] for m in task.demo if m.get("tool_calls")]
    assert shown == [[call.message() for call in step] for step in task.gold_steps]
    results = iter([m for m in task.demo if m["role"] == "tool"])
    for call, result in zip(calls(task), results, strict=True):
        body = respond(tools.tools[call.name], call.arguments, response_seed(task.id))
        assert (result["tool_call_id"], result["name"]) == (call.id, call.name)
        assert result["content"] == json.dumps(body, ensure_ascii=False)
    # one answer a user turn, last; each states its facts
    assert [m["content"] for m in task.demo if m["role"] == "user"] == task.followups
    assert len(answers(task)) == len(task.facts) == 1 + len(task.followups) and task.demo[-1]["role"] == "assistant"
    for text, facts in zip(answers(task), task.facts):
        assert text and all(fact in text for fact in facts)
    assert task.meta["gold_turns"] == sorted(task.meta["gold_turns"]) and len(task.meta["gold_turns"]) == len(task.gold_steps)
    # every argument can be copied from the words of the user, except what an earlier result feeds
    for k, step in enumerate(task.gold_steps):
        for call in step:
            for name, value in call.arguments.items():
                if not (k and task.kind == "sequential" and name == task.meta["feeds"]["argument"]):
                    assert (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) in said(task)


@pytest.mark.parametrize("split", SPLITS)
def test_all_tasks_hold_together(split):
    for task in tasks(11, split, 350):
        verify(task)
        assert task.split == split and 1 <= len(task.tools) <= 6


def test_kinds_are_mixed_evenly_and_mean_what_they_say():
    found = list(tasks(3, "train", 350))
    assert Counter(task.kind for task in found) == dict.fromkeys(KINDS, 50)
    domain = {entry.name: name for name, entries in catalog.domains().items() for entry in entries}
    for task in found:
        steps = [len(step) for step in task.gold_steps]
        if task.kind in ("single", "distractor"):
            assert steps == [1] and not task.followups
        if task.kind == "distractor":
            gold = domain[calls(task)[0].name]
            assert sum(domain[name] == gold for name in names(task)) >= 2
        if task.kind == "parallel":
            assert steps == [2] and len({call_hash(call) for call in calls(task)}) == 2
        if task.kind == "sequential":
            first = json.loads(next(m["content"] for m in task.demo if m["role"] == "tool"))
            fed = calls(task)[1].arguments[task.meta["feeds"]["argument"]]
            assert steps == [1, 1] and fed == first[task.meta["feeds"]["field"]] and str(fed) not in said(task)
        if task.kind == "abstain":
            assert steps == [] and task.facts == [[]]
        if task.kind == "ask":
            assert steps in ([], [1]) and task.facts[0] == [] and answers(task)[0].endswith("?")
            assert task.meta["missing"].replace("_", " ") in answers(task)[0]
            if steps:
                value = calls(task)[0].arguments[task.meta["missing"]]
                assert str(value) in task.followups[0] and task.meta["gold_turns"] == [1]
        if task.kind == "two_turn":
            assert steps == [1, 1] and len(task.followups) == 1 and task.meta["gold_turns"] == [0, 1]


def matcher(template):
    """A regular expression for what a query template can say."""
    text = re.sub(r"\[(.*?)\]", r"(\1)?", template.replace("?", r"\?").replace(".", r"\."))
    return re.compile(re.sub(r"\{\w+\}", r"[\\w:-]+", text))


ASKS = [(entry.name, matcher(ask)) for entries in catalog.domains().values() for entry in entries for ask in entry.asks]


def test_matcher():
    assert matcher("{a} miles[ in {b}]?").fullmatch("30 miles in Oslo?") and not matcher("find {a}").fullmatch("find a b")


def test_abstain_has_no_tool_that_fits():
    unanswerable = 0
    for task in tasks(5, "train", 300, kinds=("abstain",)):
        fitting = {name for name, ask in ASKS if ask.fullmatch(task.messages[0]["content"])}
        assert not fitting & set(names(task))
        unanswerable += bool(fitting)
    assert 150 < unanswerable < 270  # the rest is small talk


def test_example_i_depends_only_on_seed_split_and_i():
    source = builtin_source(7, "train")
    first = list(tasks(7, "train", 40))
    assert [source.task(i) for i in reversed(range(40))] == first[::-1]
    assert list(itertools.islice(tasks(7, "train"), 40)) == first
    other = list(tasks(8, "train", 40))
    assert [task.messages for task in other] != [task.messages for task in first]
    assert not {task.id for task in other} & {task.id for task in first}


def test_known_example():
    """Pinned: whoever changes the generator changes every recorded number, and should know."""
    (task,) = tasks(0, "train", 1, domains=("weather",), kinds=("single",), max_tools=1, made_up=0.0)
    assert task.messages == [{"role": "user", "content": PINNED[0]}]
    assert dict(calls(task)[0].arguments) == PINNED[1]


PINNED = ("when does the sun rise in Aarhus on 2028-02-06?", {"city": "Aarhus", "date": "2028-02-06"})


def test_held_out_tools_are_never_seen_in_training():
    train = {name for split in ("train", "heldout_tasks") for task in tasks(0, split, 700) for name in names(task)}
    assert not train & HELD_OUT and len(train) > 50
    for task in tasks(0, "heldout_tools", 300):
        assert {call.name for call in calls(task)} <= HELD_OUT


def test_held_out_tasks_have_new_values_and_new_phrasings():
    pools = [kind for kind in words.POOLS if kind not in words.UNSPLIT]
    seen = {word for kind in pools for word in words.pool(kind)} - {word for kind in pools for word in words.pool(kind, True)}
    seen -= {
        value
        for entries in catalog.domains().values()
        for e in entries
        for kind in e.args.values()
        for value in kind.split("|")
    }
    for task in tasks(0, "heldout_tasks", 400, kinds=("single",)):
        assert not {value for value in calls(task)[0].arguments.values() if isinstance(value, str)} & seen
        assert not any(ask.fullmatch(said(task)) for _, ask in ASKS), said(task)
    train = Counter(task.messages[0]["content"] for task in tasks(0, "train", 3000))
    assert not {task.messages[0]["content"] for task in tasks(0, "heldout_tasks", 500, kinds=("single", "parallel"))} & set(
        train
    )
    assert sum(train.values()) / len(train) < 1.35  # few repeats


def test_options():
    for task in tasks(0, "train", 60, domains=("weather", "dining"), max_tools=2, kinds=("single", "parallel")):
        assert set(names(task)) <= {entry.name for name in ("weather", "dining") for entry in catalog.domains()[name]}
        assert len(task.tools) <= 2
    for task in tasks(0, "train", 70, max_tools=1):
        assert len(task.tools) == 1 and task.kind not in ("sequential", "distractor")
    new = [
        call.arguments["city"]
        for task in tasks(0, "train", 40, domains=("weather",), kinds=("single",), made_up=1.0)
        for call in calls(task)
    ]
    assert not set(new) & set(words.POOLS["city"])


def test_kinds_that_are_impossible_are_left_out():
    kinds = {task.kind for task in tasks(0, "heldout_tools", 60, domains=("weather",))}
    assert "sequential" not in kinds and "single" in kinds
    with pytest.raises(ValueError, match="none of sequential is possible"):
        tasks(0, "train", 1, kinds=("sequential",), max_tools=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"domains": ("moon",)}, "unknown moon"),
        ({"kinds": ("riddle",)}, "unknown riddle"),
        ({"max_tools": 0}, "max_tools"),
        ({"made_up": 1.5}, "made_up"),
    ],
)
def test_bad_options_fail_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        tasks(0, "train", 1, **options)
    with pytest.raises(ValueError, match="split"):
        tasks(0, "test", 1)


SPECS = [
    {
        "name": f"{family}_{verb}_{noun}",
        "description": "d",
        "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in takes}, "required": takes},
        "response": {"type": "object", "properties": {f"{noun}Id": {"type": "string"}, "count": {"type": "integer"}}, "required": [f"{noun}Id"]},
    }
    for family in ("shop", "zoo", "lab")
    for noun in ("item", "user")
    for verb, takes in (("create", ["name"]), ("delete", [f"{noun}Id"]), ("list", []), ("check", ["city", "date"]))
]  # fmt: skip


@pytest.mark.parametrize("split", SPLITS)
def test_foreign_tools(split):
    bad = [
        {"name": "bad", "parameters": {"$ref": "#"}},
        {"name": "no", "parameters": {"properties": {"a": {"not": {}}}, "required": ["a"]}},
    ]
    for task in tasks_from_specs([*SPECS, *bad], 0, 140, split, max_tools=4):
        verify(task)
        assert not {"bad", "no"} & set(names(task)) and len(task.tools) <= 4
        assert len({call_hash(call) for call in calls(task)}) == len(calls(task))
    gold = {name: {call.name for task in tasks_from_specs(SPECS, 0, 200, name) for call in calls(task)} for name in SPLITS}
    assert not gold["train"] & gold["heldout_tools"]


def test_no_usable_tool():
    with pytest.raises(ValueError, match="have none for it"):
        tasks_from_specs([{"name": "bad", "parameters": {"$ref": "#"}}], 0, 1)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    split=st.sampled_from(SPLITS),
    domains=st.sets(st.sampled_from(sorted(catalog.domains())), max_size=3),
    kinds=st.sets(st.sampled_from(KINDS), min_size=1),
    max_tools=st.integers(1, 8),
    made_up=st.floats(0, 1),
)
def test_any_options(seed, split, domains, kinds, max_tools, made_up):
    try:
        found = tasks(seed, split, 3, domains=sorted(domains), kinds=sorted(kinds), max_tools=max_tools, made_up=made_up)
    except ValueError as error:
        assert "possible" in str(error)
        return
    for task in found:
        verify(task)
        assert len(task.tools) <= max_tools and task.kind in kinds
