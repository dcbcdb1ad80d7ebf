"""How people ask for a tool and what is answered."""

import json
from random import Random

import pytest

from slca.tasks import catalog, skills
from slca.tasks.schema import ToolSet, load_tool
from slca.tasks.values import respond

MAIL = {
    "name": "mail.send_message",
    "parameters": {
        "type": "object",
        "properties": {"to": {"type": "string"}, "max-size": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["to", "max-size"],
    },
    "response": {
        "type": "object",
        "properties": {"messageId": {"type": "string"}, "parts": {"type": "array", "items": {"type": "object", "properties": {"size": {"type": "integer"}}}}},
        "required": ["messageId", "parts"],
    },
}  # fmt: skip


def test_fill():
    assert skills.fill("weather in {city}[ in {unit}]?", {"city": "Oslo"}) == "weather in Oslo?"
    assert skills.fill("weather in {city}[ in {unit}]?", {"city": "Oslo", "unit": "C"}) == "weather in Oslo in C?"
    assert skills.fill("{a} {b} {c}", {"a": True, "b": ["x", 1], "c": "é"}) == 'true ["x", 1] é'
    with pytest.raises(KeyError):
        skills.fill("{a}", {})


@pytest.mark.parametrize(
    ("name", "domain", "phrase"),
    [
        ("s3_get_object", "s3", "get object in s3"),
        ("get_user", "", "get user"),
        ("math.factorial", "math", "factorial in math"),
        ("listPets", "", "list pets"),
        ("ec2_describeVPCs", "ec2", "describe vp cs in ec2"),
    ],
)
def test_names_as_words(name, domain, phrase):
    assert skills.domain_of(name) == domain
    assert skills.phrase(name) == phrase


def test_foreign_tools_are_worded_after_their_names():
    skill = skills.from_tool(load_tool(MAIL))
    arguments = {"to": "Ada", "max-size": 3}
    assert skills.fill(skill.asks[0], arguments) == "send message in mail with to Ada and max size 3"
    assert skills.fill(skill.asks[2], {**arguments, "tags": ["a"]}) == 'send message in mail: to Ada, max size 3, tags ["a"]'
    assert skills.fill(skill.unseen[0], arguments) == "can you send message in mail, to Ada, max size 3?"
    assert skill.gap == ("max-size", "send message in mail: to {to}", "can you send message in mail, to {to}?")
    answer = skill.answer(arguments, {"messageId": "M1", "parts": [{"size": 3}, {"size": 9}], "to": "Ada"})
    assert answer == ("The result has message id M1.", ["M1"])  # 3 and Ada were said by the user
    assert skill.answer(arguments, {"parts": [{"size": 7}]}) == ("The result has size 7.", ["7"])
    assert skill.answer(arguments, {}) == ("Done: send message in mail.", [])


def test_drawn_arguments_are_valid():
    for spec in [MAIL, *catalog.specs()]:
        skill = skills.from_tool(load_tool(spec))
        for seed in range(5):
            assert skill.tool.check(skill.draw(Random(seed), False, 0.5, skills.mentioned(skill.asks[0]))) == []


def test_one_call_has_two_cities():
    entry = next(entry for entry in catalog.domains()["maps"] if entry.name == "get_distance")
    skill = skills.from_entry(entry, "maps")
    for seed in range(200):
        drawn = skill.draw(Random(seed), False, 0.0, frozenset())
        assert drawn["start"] != drawn["end"]


def test_optional_arguments_only_where_the_query_says_them():
    entry = next(entry for entry in catalog.domains()["media"] if entry.name == "play_song")
    skill = skills.from_entry(entry, "media")
    assert all(set(skill.draw(Random(seed), False, 0.0, frozenset({"song"}))) == {"song"} for seed in range(20))
    sizes = {len(skill.draw(Random(seed), False, 0.0, frozenset({"song", "artist"}))) for seed in range(40)}
    assert sizes == {1, 2}


def test_chains_pass_identifiers_on():
    def tool(name, takes, gives):
        return {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in takes}, "required": list(takes)},
            "response": {"type": "object", "properties": {key: {"type": "string"} for key in gives}, "required": list(gives)},
        }

    specs = [
        tool("box_create", ["name"], ["boxId", "colour"]),
        tool("box_paint", ["boxId", "colour"], ["done"]),
        tool("box_drop", ["boxId"], ["done"]),
        tool("other_drop", ["boxId"], ["done"]),
        tool("box_number", ["boxId"], ["done"]),
    ]
    specs[4]["parameters"]["properties"]["boxId"] = {"type": "integer"}
    links = skills.chains([skills.from_tool(tool) for tool in ToolSet.load(specs).tools.values()])
    assert [(link.first, link.second, link.field) for link in links] == [
        ("box_create", "box_paint", "boxId"),
        ("box_create", "box_drop", "boxId"),
    ]
    assert links[0].asks[0] == "create in box with name {name}, then paint in box with that box id and colour {colour}"


def test_answers_of_the_catalogue_state_the_result():
    for domain, entries in catalog.domains().items():
        for entry in entries:
            skill = skills.from_entry(entry, domain)
            arguments = skill.draw(Random(1), False, 0.0, frozenset())
            result = respond(skill.tool, arguments, 0)
            text, facts = skill.answer(arguments, result)
            assert facts and "{" not in text
            assert all(fact in text and fact in json.dumps(result, ensure_ascii=False) for fact in facts)
