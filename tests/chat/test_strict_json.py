"""What Python's decoder forgives and `Reader` does not; where a value ends."""

import time

import pytest

from slca.chat.strict_json import Reader, preview


def read(text, start=0, **caps):
    return Reader(**caps).read(text, start)


def test_value_and_its_end():
    assert read('x {"a": [1, 2.5, null, true]} tail', 1) == ({"a": [1, 2.5, None, True]}, 29, None)
    assert read('"</tool_call>" tail').end == len('"</tool_call>"')


@pytest.mark.parametrize(
    ("text", "kind", "end"),
    [
        ('{"a": 1, "a": 2}', "duplicate_key", 16),
        ('{"o": {"a": 1, "b": 1, "a": 2}}', "duplicate_key", 31),
        ("[NaN]", "number_range", 5),
        ("[-Infinity]", "number_range", 11),
        ("[1e999]", "number_range", 7),
        ("1" * 4301, "number_range", 4301),
        ("-" + "1" * 4301, "number_range", 4302),
        ("[" * 65 + "]" * 65, "too_deep", 130),
        ("[" * 100_000 + "]" * 100_000, "too_deep", 200_000),
        ('"\\ud800"', "bad_text", 8),
        ('["\ud800"]', "bad_text", 5),
        ('{"\\udc00": 1}', "bad_text", 13),
        ('"' + "x" * (256 * 1024) + '"', "too_large", 256 * 1024 + 2),
        ('"' + "é" * (128 * 1024) + '"', "too_large", 128 * 1024 + 2),
    ],
)
def test_refused_though_the_end_is_known(text, kind, end):
    value, stop, fault = read(text + " rest")
    assert (value, stop, fault.kind) == (None, end, kind)


@pytest.mark.parametrize(
    "text", ["1" * 4300, "[" * 64 + "]" * 64, '"\\ud83d\\ude00"', '"' + "x" * (256 * 1024 - 2) + '"', "1e308", "-0"]
)
def test_just_within(text):
    assert read(text).fault is None


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("", True),
        ("  ", True),
        ('{"a": ', True),
        ('{"a"', True),
        ('{"a": "b', True),
        ("[1, 2", True),
        ("{'a': 1}", False),
        ("{a: 1}", False),
        ('{"a": 1,}', False),
        ('{"a": "b\nc"}', False),
        ("nope", False),
        ('{"a": 01}', False),
    ],
)
def test_malformed(text, cut):
    _, _, fault = read(text)
    assert (fault.kind, fault.cut) == ("malformed_json", cut)


def test_one_reader_forgets_the_faults_of_the_last_value():
    reader = Reader()
    assert reader.read("[NaN]").fault.kind == "number_range"
    assert reader.read("[1]") == ([1], 3, None)


def test_caps_are_arguments():
    assert read("[[1]]", max_depth=1).fault.kind == "too_deep"
    assert read('"abcdef"', max_bytes=7).fault.kind == "too_large"


def test_linear_time_on_quotes_that_never_close():
    start = time.process_time()
    read("[" * 2000 + '"' + '\\"' * 500_000)
    assert time.process_time() - start < 2


def test_preview_is_one_short_line():
    assert preview("a\nb", 10) == '"a\\nb"'
    assert len(preview("x" * 1000, 20)) == 22
