"""Forms of answers: the schema of a call, references that move with it, grammars that fail alone."""

import numpy as np

from slca.serve.constrain import Fenced, Grammars, call_schema
from tests.serve.engines import tiny


def test_references_of_each_tool_keep_their_meaning():
    parameters = {"properties": {"a": {"$ref": "#/$defs/d"}, "b": {"$ref": "#"}}, "$defs": {"d": {"type": "string"}}}
    schema = call_schema([{"function": {"name": "f", "parameters": parameters}}, {"function": {"name": "g"}}], "arguments")
    first = schema["$defs"]["tool0"]
    assert (
        first["properties"] == {"a": {"$ref": "#/$defs/tool0/$defs/d"}, "b": {"$ref": "#/$defs/tool0"}}
        and first["type"] == "object"
    )
    assert [form["properties"]["name"]["const"] for form in schema["anyOf"]] == ["f", "g"]
    assert schema["anyOf"][1]["properties"]["arguments"] == {"$ref": "#/$defs/tool1"}


def test_the_arguments_of_a_call_are_an_object_whatever_else_its_parameters_allow():
    schema = call_schema([{"function": {"name": "f", "parameters": {"type": ["object", "null"]}}}], "arguments")
    assert schema["$defs"]["tool0"]["type"] == "object"


def test_the_opening_is_what_the_template_writes():
    opening = Grammars(tiny(), False).call_opening()
    assert (opening.before, opening.after, opening.key) == ("<tool_call>", "</tool_call>", "arguments")
    assert opening.separators == (",", ":")


class Broken:
    """A grammar that fails as a panic of a native library does."""

    def mask(self):
        raise BaseException("panic")

    advance = stopped = mask


def test_a_grammar_that_fails_ends_its_row_alone():
    fenced = Fenced(Broken(), 70)
    assert fenced.mask().tolist() == [0, 0, 0] and fenced.mask().dtype == np.int32
    assert Fenced(Broken(), 70).stopped() is False and Fenced(Broken(), 70).advance(1) is None
