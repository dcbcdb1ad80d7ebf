"""The scripted world: the generator's own demonstrations, consistency over a rollout, the entity store of `kv`."""

import json

import pytest

from slca.sgls import scripted
from slca.sgls.contract import contract, words, writes
from slca.sgls.simulator import Simulator
from slca.tasks.schema import ToolSet
from slca.tasks.synthesize import SPLITS, tasks
from slca.types import Context, ToolCall
from tests.sgls.tools import TOOLS

SAVE = ToolCall("notes.save", {"id": "n7", "title": "Plans", "body": "Buy oats."})
GET, LIST, DELETE = ToolCall("notes.get", {"id": "n7"}), ToolCall("notes.list", {}), ToolCall("notes.delete", {"id": "n7"})


@pytest.mark.parametrize("split", SPLITS)
def test_a_rollout_of_the_demonstration_meets_the_demonstrated_results(split):
    simulator, results = Simulator(), 0
    for task in tasks(3, split, 60):
        toolset, context, observations = ToolSet.load(task.tools), Context(task.id), {}
        for message in task.demo:
            if message["role"] == "assistant":
                made = [entry["function"] | {"id": entry["id"]} for entry in message.get("tool_calls", ())]
                calls = [ToolCall(call["name"], call["arguments"], call["id"]) for call in made]
                observations = {call.id: simulator.simulate(call, toolset, context) for call in calls}
                context.transcript += [(call, observations[call.id]) for call in calls]
            elif message["role"] == "tool":
                assert observations[message["tool_call_id"]].text == message["content"]
                results += 1
    assert results > 40


def test_every_group_has_its_own_world_and_every_rollout_of_it_the_same():
    simulator = Simulator(cache="none")
    call = ToolCall("get_weather", {"city": "Oslo"})
    texts = {group: {simulator.simulate(call, TOOLS, Context(group, i, seed=i)).text for i in range(4)} for group in "abcdefgh"}
    assert all(len(seen) == 1 for seen in texts.values()) and len(set.union(*texts.values())) > 4


def test_a_call_is_answered_alike_wherever_it_is_made():
    simulator = Simulator()
    call = ToolCall("get_weather", {"city": "Oslo"})
    first = simulator.simulate(call, TOOLS, Context("g"))
    other = ToolCall("get_weather", {"city": "Rome"})
    context = Context("g", transcript=[(other, simulator.simulate(other, TOOLS, Context("g"))), (call, first)])
    again = simulator.simulate(call, TOOLS, context)
    assert again.text == first.text and again.provenance["source"] == "cache"


def test_linked_exchanges_are_those_whose_result_brought_a_value_up():
    simulator = Simulator()
    find = ToolCall("notes.list", {})
    found = simulator.simulate(find, TOOLS, Context("g"))
    note = json.loads(found.text)["notes"][0]
    pairs = [(find, found), (ToolCall("free_form", {"q": "x"}), simulator.simulate(ToolCall("free_form", {"q": "x"}), TOOLS))]
    assert scripted.linked(ToolCall("notes.get", {"id": note["id"]}), pairs) == (pairs[0],)
    assert scripted.linked(ToolCall("notes.get", {"id": "unheard of"}), pairs) == ()
    opened = simulator.simulate(ToolCall("notes.get", {"id": note["id"]}), TOOLS, Context("g", transcript=pairs))
    assert json.loads(opened.text) == note


# kv


def kv(*calls):
    simulator, context = Simulator(state="kv"), Context("g")
    return [simulator.simulate(call, TOOLS, context) for call in calls], context


def test_kv_what_was_saved_is_read_and_listed():
    (before, _, read, listed), context = kv(GET, SAVE, GET, LIST)
    assert json.loads(before.text)["body"] != "Buy oats."
    assert json.loads(read.text) == {"id": "n7", "title": "Plans", "body": "Buy oats."}
    notes = json.loads(listed.text)
    assert notes["notes"][0] == json.loads(read.text) and notes["total"] == len(notes["notes"])
    assert list(context.state) == ["note/n7"] and context.state["note/n7"]["title"] == "Plans"


def test_kv_a_later_write_wins_and_other_entities_stay():
    other = ToolCall("notes.save", {"id": "n8", "title": "Other", "body": "b"})
    again = ToolCall("notes.save", {"id": "n7", "title": "Plans", "body": "Buy rye."})
    (*_, read, third), context = kv(SAVE, other, again, GET, ToolCall("notes.get", {"id": "n9"}))
    assert json.loads(read.text)["body"] == "Buy rye." and set(context.state) == {"note/n7", "note/n8"}
    assert json.loads(third.text)["body"] not in ("b", "Buy rye.")


def test_kv_what_was_deleted_is_gone():
    (_, deleted, read, again, listed), context = kv(SAVE, DELETE, GET, DELETE, LIST)
    assert deleted.status == "ok" and context.state == {"note/n7": None}
    assert read.status == again.status == "tool_error" and json.loads(read.text)["error"]["code"] == "not_found"
    assert all(note["id"] != "n7" for note in json.loads(listed.text)["notes"])


def test_kv_is_deterministic_and_alike_over_a_group():
    calls = (GET, SAVE, LIST, DELETE, LIST, GET)
    assert [o.text for o in kv(*calls)[0]] == [o.text for o in kv(*calls)[0]]


def test_kv_an_entity_never_breaks_the_response_schema():
    body = contract(TOOLS.tools["notes.get"])
    state = {"note/n7": {"id": "n7", "title": 5, "body": "fine", "stars": 3}}
    answer = scripted.answer_with_state(body, GET, "g", state)
    assert body.violation(answer["response"]) is None
    assert answer["response"]["body"] == "fine" and isinstance(answer["response"]["title"], str)


# what a name says


@pytest.mark.parametrize(
    "name", ["notes.save", "create_event", "CreateBucket", "sqs_delete_queue", "cancelOrder", "book_hotel", "user.setName"]
)
def test_writers(name):
    assert writes(name)


@pytest.mark.parametrize(
    "name", ["get_order", "notes.list", "DescribeInstances", "book.search", "weather", "list_posts", "find_book", ""]
)
def test_readers(name):
    assert not writes(name)


def test_words_and_entities():
    assert words("sqs_DeleteQueue2.URL") == ["sqs", "delete", "queue", "url"]
    assert scripted.entity_key(SAVE) == scripted.entity_key(GET) == "note/n7"
    assert scripted.entity_key(LIST) is None
    assert scripted.entity_key(ToolCall("update_order_status", {"name": "x", "order_id": 12})) == "order_status/12"


def test_contracts_are_worked_out_once():
    tool = TOOLS.tools["get_weather"]
    assert contract(tool) is contract(tool) and contract(tool).digest != contract(TOOLS.tools["free_form"]).digest
    assert contract(tool).violation({"city": "x", "temp_c": 1}) is None
    assert contract(tool).violation({"city": "x"}) == "required: 'temp_c' is missing"


def test_a_global_cache_is_one_world_in_any_order():
    call = ToolCall("get_weather", {"city": "Oslo"})
    orders = [
        [Simulator(cache="global").simulate(call, TOOLS, Context(group)).text for group in groups] for groups in ("ab", "ba")
    ]
    assert len({text for texts in orders for text in texts}) == 1
