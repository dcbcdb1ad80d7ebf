"""Start-up refusals: each names the template and what is wrong."""

import pytest

from slca.chat.template import Template
from slca.chat.tokenizer import from_transformers, load
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
    if name == "tiny":
        Template(load("tiny"), thinking=True).check()
