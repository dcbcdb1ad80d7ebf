"""Marks: what breaks a control string in content, and what never changes."""

import pytest

from slca.chat.rendering import ControlStrings, plain_messages, render

CONTROL = ControlStrings({"<a>": 1, "<ab>": 2, "</think>": 3})


def test_split_takes_the_longest_and_the_leftmost():
    assert CONTROL.split("x<ab>y<a>") == ["x", "<ab>", "y", "<a>", ""]
    assert ControlStrings({"<u1>": 1, "<u12>": 2, "<u": 3}).split("<u12><u1><u2") == ["", "<u12>", "", "<u1>", "", "<u", "2"]


@pytest.mark.parametrize("text", ["<a>", "x<ab>y", "<ab><a>", "<a", "a>", "x<", "> y", "x</thin", "think>"])
def test_marks_break_and_are_removable(text):
    mark, (marked,) = CONTROL.mark(text)
    assert mark and marked != text and marked.replace(mark, "") == text
    assert CONTROL.split("<ab" + marked + ">")[0::2] == ["<ab" + marked + ">"]


def test_overlapping_control_strings_are_all_broken():
    control = ControlStrings({"<a>b": 1, ">b<": 2, "b<c>": 3})
    mark, (marked,) = control.mark("<a>b<c>")
    assert control.split(marked) == [marked] and marked.replace(mark, "") == "<a>b<c>"


def test_harmless_content_is_passed_through_untouched():
    content = {"a": ["plain", 1, None], "b": "1 < 2 and 3 > 2"}
    mark, (same,) = CONTROL.mark(content)
    assert mark == "" and same is content


def test_the_mark_is_absent_from_all_content():
    mark, (marked, other) = CONTROL.mark("<a>", {"k": "\ue000\ue001"})
    assert mark == "\ue002" and other == {"k": "\ue000\ue001"} and marked == "<\ue002a>"


def test_keys_are_content():
    mark, (marked,) = CONTROL.mark({"<a>": [{"<ab>": 1}]})
    assert marked == {f"<{mark}a>": [{f"<{mark}ab>": 1}]}


def test_edges_keep_white_space_outermost():
    """A template that trims must still trim."""
    mark, (marked,) = CONTROL.mark("  <a>  ")
    assert marked == f"  <{mark}a>  "


def test_plain_messages_drop_what_is_absent():
    assert plain_messages([{"role": "user", "content": "x", "tool_calls": [], "name": None}]) == [
        {"role": "user", "content": "x"}
    ]


def test_a_refusal_names_the_roles():
    with pytest.raises(ValueError, match=r"refuses the messages \(user tool\): no tools here"):
        render("{{ raise_exception('no tools here') }}", [{"role": "user"}, {"role": "tool"}], None, {})


def test_tojson_is_that_of_transformers():
    assert render("{{ messages[0] | tojson }}", [{"role": "a<b & it's é", "b": 1, "a": 2}], None, {}) == (
        '{"role": "a<b & it\'s é", "b": 1, "a": 2}'
    )
