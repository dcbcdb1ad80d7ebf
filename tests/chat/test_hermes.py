"""The Hermes form of a conversation, by hand."""

from slca.chat import hermes
from tests.chat.conversations import OSLO, ROME, TOOLS, assistant, result, system, user


def test_calls_and_merged_results():
    out = hermes.plain(
        [user("?"), assistant("Both.", OSLO, ROME), result(OSLO, "4"), result(ROME, "21"), assistant("Done.")], None
    )
    assert out == [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": 'Both.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\n4\n</tool_response>\n<tool_response>\n21\n</tool_response>",
        },
        {"role": "assistant", "content": "Done."},
    ]


def test_tools_go_into_the_system_message():
    (first, second) = hermes.plain([system("Be brief."), user("?")], TOOLS[1:])
    assert first["content"].startswith("Be brief.\n\n# Tools\n\n")
    assert '<tools>\n{"type": "function", "function": {"name": "get_time"' in first["content"]
    assert first["content"].endswith('{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>')
    assert second == {"role": "user", "content": "?"}
    assert hermes.plain([user("?")], TOOLS)[0]["content"].startswith("# Tools")


def test_text_is_what_qwen_prints():
    """One format for every family: the block equals the tool part of Qwen's own system turn."""
    from tests.chat.families import transformers_tokenizer

    text = transformers_tokenizer("qwen2_5").apply_chat_template([system("S"), user("?")], tools=TOOLS, tokenize=False)
    assert hermes.plain([system("S"), user("?")], TOOLS)[0]["content"] in text


def test_reasoning_is_written_out():
    (out,) = hermes.plain([assistant("Yes", reasoning="hm")], None)
    assert out["content"] == "<think>\nhm\n</think>\n\nYes"
