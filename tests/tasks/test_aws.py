"""AWS operations as tools: real schemas, many of them, all usable."""

import json
import sys
from random import Random

import pytest

from slca.tasks import aws
from slca.tasks.schema import ToolSet, public_specs
from slca.tasks.values import argument, respond
from slca.types import ToolCall


@pytest.fixture(scope="module")
def specs():
    pytest.importorskip("botocore")
    return aws.botocore()


def test_many_operations_and_services(specs):
    tools = ToolSet.load(specs)
    assert not tools.refused and len(tools.tools) >= 200
    assert len({name.split("_")[0] for name in tools.tools}) >= 20
    sizes = sorted(len(json.dumps(public_specs([spec]))) for spec in specs)
    assert sizes[len(sizes) // 2] < 500 and sizes[-1] < 2000  # characters of a prompt


MODEL = {
    "operations": {"PutNote": {"input": {"shape": "In"}, "output": {"shape": "Out"}, "documentation": "Keeps a note."}},
    "shapes": {
        "In": {"type": "structure", "required": ["Note", "Marker"], "members": {
            "Note": {"shape": "Text"}, "Marker": {"shape": "Text"}, "DryRun": {"shape": "Flag"}, "clientRequestToken": {"shape": "Text"},
            "IdempotencyToken": {"shape": "Text"}, "Color": {"shape": "Text"}, "Size": {"shape": "Text"}, "Mood": {"shape": "Text"}}},
        "Out": {"type": "structure", "members": {
            "NextToken": {"shape": "Text"}, "NextMarker": {"shape": "Text"}, "Id": {"shape": "Text"}}},
        "Text": {"type": "string"}, "Flag": {"type": "boolean"},
    },
}  # fmt: skip


def test_optional_fields_about_the_transport_are_left_out():
    """They take no place of those that are about the matter; a required one stays."""
    function = aws._spec("notes", "PutNote", MODEL)["function"]
    assert list(function["parameters"]["properties"]) == ["Note", "Marker", "Color", "Size"]
    assert list(function["response"]["properties"]) == ["Id"]


def test_no_default_tool_has_one(specs):
    for spec in specs:
        for part in ("parameters", "response"):
            fields = spec["function"][part]
            optional = {name.lower() for name in fields["properties"]} - {name.lower() for name in fields["required"]}
            assert not optional & {
                "clientrequesttoken",
                "clienttoken",
                "idempotencytoken",
                "marker",
                "nextmarker",
                "nexttoken",
                "dryrun",
            }


def test_valid_calls_get_valid_answers_and_invalid_ones_errors(specs):
    tools = ToolSet.load(specs)
    for k, tool in enumerate(tools.tools.values()):
        rng = Random(k)
        arguments = argument(tool.parameters, rng)
        assert tools.check(ToolCall(tool.name, arguments)) == []
        assert tool.check_response(respond(tool, arguments, k)) == []
        if tool.parameters["properties"]:
            assert tools.check(ToolCall(tool.name, dict.fromkeys(tool.parameters["properties"]))) != []
        for name in tool.parameters["required"]:
            rest = {key: value for key, value in arguments.items() if key != name}
            assert [error.kind for error in tools.check(ToolCall(tool.name, rest))] == ["required"]


def test_choice_is_seeded():
    pytest.importorskip("botocore")
    names = [spec["function"]["name"] for spec in aws.botocore(["sqs"], 5, seed=0)]
    assert len(names) == 5 and names == [spec["function"]["name"] for spec in aws.botocore(["sqs"], 5, seed=0)]
    assert names != [spec["function"]["name"] for spec in aws.botocore(["sqs"], 5, seed=1)]
    every = {spec["function"]["name"]: spec["function"] for spec in aws.botocore(["sqs"], 10**6)}
    send = every["sqs_send_message"]
    assert send["parameters"]["required"] == ["QueueUrl", "MessageBody"]
    assert {"MessageId", "MD5OfMessageBody"} <= set(send["response"]["properties"])


def test_unknown_service():
    pytest.importorskip("botocore")
    with pytest.raises(ValueError, match="no service 'nope'"):
        aws.botocore(["nope"])


def test_missing_package_is_said_plainly(monkeypatch):
    monkeypatch.setitem(sys.modules, "botocore.loaders", None)
    aws._loader.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"pip install 'slca\[botocore\]'"):
            aws.botocore(["sqs"])
    finally:
        aws._loader.cache_clear()
