"""Tool results cut by tokens: the count in the marker, the edges, JSON that stays JSON."""

import json
import re

import pytest
from hypothesis import strategies as st

from slca.chat.budget import SMALLEST, cut
from tests.chat.families import template
from tests.chat.properties import attacks, property_tests


def shortened(content, budget, name="qwen2_5"):
    t = template(name).tokenizer
    return cut(content, budget, t.encode, t.decode)


def count(text, name="qwen2_5"):
    return len(template(name).tokenizer.encode(text))


def gone(text):
    return [int(number) for number in re.findall(r"\[\.\.\. (\d+) tokens cut \.\.\.\]", text)]


def test_what_fits_is_untouched():
    assert shortened("short", 32) == "short"
    text = "x y " * 100
    assert shortened(text, count(text)) == text
    assert shortened(text, count(text) - 1) != text


def test_text_is_cut_in_the_middle_and_the_marker_counts():
    text = " ".join(str(n) for n in range(300))
    out = shortened(text, 64)
    assert count(out) <= 64
    head, tail = re.split(r"\n\[\.\.\. \d+ tokens cut \.\.\.\]\n", out)
    assert text.startswith(head) and text.endswith(tail) and head and tail
    assert gone(out) == [count(text) - count(head) - count(tail)]


def test_characters_are_not_split():
    out = shortened("世界" * 400, 50)
    assert "\ufffd" not in out and count(out) <= 50


def test_json_stays_json():
    rows = [{"id": i, "name": f"row {i}", "text": "word " * 40} for i in range(50)]
    out = shortened(json.dumps({"rows": rows, "total": 50}), 200)
    value = json.loads(out)
    assert count(out) <= 200
    assert value["total"] == 50 and value["rows"][0]["id"] == 0 and value["rows"][-1]["id"] == 49
    assert gone(out)


def test_json_of_a_megabyte_stays_json():
    """Beyond the cap of a call (256 KiB), which is none for results."""
    out = shortened(json.dumps([{"id": i, "text": "word " * 10} for i in range(9000)]), 200, "tiny")
    value = json.loads(out)
    assert value[0]["id"] == 0 and value[-1]["id"] == 8999 and count(out, "tiny") <= 200
    assert gone(out)[-1] > 100_000


def test_a_long_string_in_json():
    out = shortened(json.dumps({"ok": True, "page": "begin " + "x y " * 500 + "end"}), 100)
    value = json.loads(out)
    assert value["ok"] is True and value["page"].startswith("begin") and value["page"].endswith("end")
    assert sum(gone(out)) > 800


def test_most_of_the_budget_is_used():
    for value in ({"page": "x y " * 9000}, [{"id": i} for i in range(9000)], {f"key{i}": i for i in range(9000)}):
        for budget in (200, 1000):
            assert budget / 2.5 < count(shortened(json.dumps(value), budget)) <= budget


def test_a_wide_object_in_json():
    out = shortened(json.dumps({f"key{i}": i for i in range(400)}), 64)
    value = json.loads(out)
    assert value["key0"] == 0 and gone(value["..."])


def test_json_whose_skeleton_does_not_fit_is_cut_as_text():
    out = shortened(json.dumps({"k" * 400: 1}), 40)
    assert count(out) <= 40 and gone(out)
    with pytest.raises(json.JSONDecodeError):
        json.loads(out)


@pytest.mark.parametrize("name", ["tiny", "smollm2", "qwen2_5", "gemma"])
def test_smallest_budget_on_every_tokenizer(name):
    for content in ("x y " * 400, json.dumps(list(range(999))), "é" * 999, "\ufffd" * 500):
        out = shortened(content, SMALLEST, name)
        assert count(out, name) <= SMALLEST and gone(out)


JSON = st.recursive(
    st.none() | st.integers() | attacks(4),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=8), inner, max_size=30),
    max_leaves=60,
)


@property_tests(content=attacks(40) | JSON.map(lambda value: json.dumps(value, ensure_ascii=False)), budget=st.integers(32, 80))
def never_over_budget(content, budget):
    out = shortened(content, budget, "tiny")
    assert count(out, "tiny") <= budget
    assert (out == content) == (count(content, "tiny") <= budget)


test_never_over_budget, test_never_over_budget_nightly = never_over_budget
