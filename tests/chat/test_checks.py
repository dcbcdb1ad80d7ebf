"""Start-up refusals: each names the template and what is wrong."""

import pytest

from slca.chat.parse import parse
from slca.chat.template import Template
from slca.chat.tokenizer import from_transformers, load
from slca.types import ToolCall
from tests.chat.families import KEEPS_PREFIXES, OPTIONS, template, transformers_tokenizer


@pytest.mark.parametrize("name", OPTIONS)
def test_supported_families_pass(name):
    template(name).check()


def altered(name, old, new, **options):
    """The family with `old` in its chat template replaced by `new`."""
    tokenizer = load("tiny") if name == "tiny" else from_transformers(transformers_tokenizer(name), name="altered")
    assert old in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(old, new)
    return Template(tokenizer, **{**OPTIONS[name], **options})


def test_wrong_wire_format():
    with pytest.raises(ValueError, match=r"chat.wire='hermes' does not read the calls"):
        Template(transformers_tokenizer("llama"), wire="hermes").check()
    with pytest.raises(ValueError, match=r"chat.wire='llama_json' does not read the calls"):
        Template(transformers_tokenizer("qwen2_5"), wire="llama_json").check()


JSON_CALL = """{{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + "}<|eot_id|>" }}"""


BUILT_IN = """{{- "<|python_tag|>" + call.name + ".call(" }}{%- for key, value in call.arguments | items %}{{- key + '="' + """
JOINED = """value + '"' }}{%- endfor %}{{- ")<|eom_id|>" }}"""
TO_TEXT = """(value | string) + '"' }}{{- "" if loop.last else ", " }}{%- endfor %}{{- ")<|eom_id|>" }}"""


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (JSON_CALL, "does not read the calls"),  # its tools: JSON whatever the wire
        (BUILT_IN + JOINED, "cannot write a call"),  # its built-in tools: text plus a number
        (BUILT_IN + TO_TEXT, "does not read the calls"),  # a quote inside a value ends it
    ],
)
def test_python_tag_of_the_published_llama_template_is_refused_with_the_reason(written, reason):
    with pytest.raises(ValueError, match=rf"{reason}.*built-in tools only.*use chat.wire='llama_json'"):
        altered("llama", JSON_CALL, written, wire="llama_python").check()


def test_python_tag_of_a_template_that_writes_json_values():
    written = (
        """{{- "<|python_tag|>" + call.name + ".call(" }}{%- for key, value in call.arguments | items %}"""
        """{{- key + "=" + (value | tojson) + ("" if loop.last else ", ") }}{%- endfor %}{{- ")<|eom_id|>" }}"""
    )
    template = altered("llama", JSON_CALL, written, wire="llama_python")
    template.check()
    call = ToolCall("f", {"a": 'x", b="y', "n": 3, "deep": {"k": [None, True]}}, "call_0")
    ids = template.assistant([], {"role": "assistant", "content": "", "tool_calls": [call.message()]})
    assert template.tokenizer.decode(ids[-1:]) == "<|eom_id|>"
    assert parse(template.tokenizer.decode(ids[:-1]), wire="llama_python").calls == (ToolCall("f", call.arguments),)


def test_turn_that_does_not_end_with_a_stop_token():
    with pytest.raises(ValueError, match=r"does not end an assistant turn with a stop token.*learn to stop"):
        altered("qwen2_5", "<|im_end|>", "<|endoftext|>").check()


def test_separator_that_moves():
    """A template that joins results to the turn before only when another message follows."""
    template = altered("tiny", "{{- '<tool_response>' +", "{{- ('' if loop.last else ' ') + '<tool_response>' +")
    with pytest.raises(ValueError, match=r"chat template of 'tiny' rewrites history: after assistant turn 2"):
        template.check()
    template = altered(
        "tiny", "{{- '<tool_response>' +", "{{- ('' if loop.last else ' ') + '<tool_response>' +", history="append"
    )
    template.check()


def test_template_that_takes_structure_from_content():
    """Upper-casing changes no mark, but a template that decides by content length writes other control tokens."""
    with pytest.raises(ValueError, match="write control tokens"):
        altered(
            "tiny",
            "message.content + '<|im_end|>",
            "message.content + ('<think>' if message.content | length > 60 else '') + '<|im_end|>",
        ).check()


@pytest.mark.parametrize("name", KEEPS_PREFIXES)
def test_thinking_is_harmless_where_the_template_knows_none(name):
    Template(template(name).tokenizer, **OPTIONS[name], thinking=True).check()
