"""The check and the cut of simulated bodies."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca.sgls import response
from slca.sgls.response import InvalidResponse

MARKERS = [
    "<tool_call>",
    "</tool_call>",
    "</tool_response>",
    "<|im_end|>",
    "<|im_start|>",
    "<start_of_turn>",
    "<think>",
    "</think>",
]
MARKERS += ["<|eot_id|>", "</tools>", "<end_of_turn>"]


@pytest.mark.parametrize("text, value", [('{"a": 1}', {"a": 1}), ("[]", []), ("null", None), ('"x"', "x"), (" 3.5 ", 3.5)])
def test_loads(text, value):
    assert response.loads(text) == value


@pytest.mark.parametrize(
    "text, kind",
    [
        ("", "empty"),
        ("success", "not_json"),
        ('{"a": 1} done', "not_json"),
        ('{"a": NaN}', "not_json"),
        ('{"a": 1e999}', "not_json"),
        ('{"a": -Infinity}', "not_json"),
        ('"\\ud800"', "not_json"),
        ('{"\\udc00": 1}', "not_json"),
        ("9" * 5000, "not_json"),
        ("[" * 65 + "]" * 65, "too_deep"),
        ("[" * 100_000 + "]" * 100_000, "too_deep"),
        ('"' + "x" * 300_000 + '"', "too_large"),
    ],
)
def test_loads_refuses(text, kind):
    with pytest.raises(InvalidResponse) as caught:
        response.loads(text)
    assert caught.value.kind == kind
    assert len(str(caught.value)) < 200


def test_64_levels_are_fine():
    assert response.loads("[" * 64 + "]" * 64) is not None


@pytest.mark.parametrize("marker", MARKERS)
def test_markers_are_escaped_and_the_value_is_kept(marker):
    value = {"a" + marker: [marker, "\\" + marker, f"x < y {marker}{marker}"]}
    text = response.wire(value)
    assert json.loads(text) == value
    assert marker not in text


def test_harmless_text_is_left_alone():
    value = {"formula": "a < b, c <- d, 1<2", "city": "Tromsø"}
    assert response.wire(value) == '{"formula": "a < b, c <- d, 1<2", "city": "Tromsø"}'


def test_paper_cut():
    assert response.cut_middle("0123456789", 10) == "0123456789"
    assert response.cut_middle("0123456789A", 4) == "01...(truncated)...9A"


@pytest.mark.parametrize(
    "value",
    [
        {"text": "x" * 5000},
        [{"id": i, "note": "n" * 30} for i in range(500)],
        {str(i): i for i in range(900)},
        ["\u0001" * 900],
        "<tool_call>" * 400,
        [[[["deep" * 300]]]],
    ],
)
@pytest.mark.parametrize("limit", [64, 500, 2048])
def test_cut_json_stays_json_within_the_limit(value, limit):
    text = response.cut_json(value, limit)
    assert len(text) <= limit
    json.loads(text)


def test_cut_json_says_how_much_is_gone():
    cut = json.loads(response.cut_json({"total": 500, "items": list(range(500))}, 200))
    assert cut["total"] == 500 and cut["items"][:4] == [0, 1, 2, 3]
    kept = len(cut["items"]) - 1
    assert cut["items"][-1] == f"…[{500 - kept} more]"
    text = json.loads(response.cut_json("ab" * 2000, 300))
    assert text.startswith("abab") and text.endswith("abab") and "characters]" in text


def test_short_values_are_not_touched():
    assert response.cut_json({"a": [1, 2]}, 2048) == '{"a": [1, 2]}'


def integers_only(value):
    return None if isinstance(value, int) else "type"


def test_check():
    response.check(3, integers_only)
    response.check({"error": {"message": "no such city"}}, integers_only)
    for bad in ("3", {"error": None}, {"error": 1, "x": 2}, {}):
        with pytest.raises(InvalidResponse) as caught:
            response.check(bad, integers_only)
        assert caught.value.kind == "schema"


def test_check_of_learned_keys():
    keys = response.top_keys('{"a": 1, "b": 2}')
    assert keys == {"a", "b"} and response.top_keys("[1]") == response.top_keys("oops") == frozenset()
    response.check({"a": 0, "b": 0, "c": 0}, lambda value: None, keys)
    for bad in ({"a": 1}, [1]):
        with pytest.raises(InvalidResponse) as caught:
            response.check(bad, lambda value: None, keys)
        assert caught.value.kind == "keys"


def test_patch_envelope():
    schema = response.with_patch({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}})
    assert schema["properties"]["response"] == {"$ref": "#/$defs/n"} and schema["$defs"] == {"n": {"type": "integer"}}
    assert response.split_patch({"response": 1, "state_patch": {"a": 2}}) == (1, {"a": 2})
    for bad in (1, {"response": 1}, {"response": 1, "state_patch": []}, {"response": 1, "state_patch": {"a": "x" * 40_000}}):
        with pytest.raises(InvalidResponse):
            response.split_patch(bad)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(MARKERS),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=20) | st.sampled_from(MARKERS), inner, max_size=6)
    ),
    max_leaves=30,
)


@settings(max_examples=150, deadline=None)
@given(JSON, st.integers(64, 400))
def test_any_value_survives_the_wire_and_the_cut(value, limit):
    text = response.wire(value)
    assert json.loads(text) == value and response.loads(text) == value
    assert not any(marker in text for marker in MARKERS)
    cut = response.cut_json(value, limit)
    assert len(cut) <= limit and not any(marker in cut for marker in MARKERS)
    json.loads(cut)


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_loads_never_raises_anything_else(text):
    try:
        response.wire(response.loads(text)).encode()
    except InvalidResponse:
        pass
