"""Metadata read directly, against what the `gguf` package wrote."""

import pytest

from slca.chat import gguf_metadata

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'slca[gguf]'")


def test_metadata_agrees_with_the_gguf_package(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = {"u8": (1, writer.add_uint8), "i64": (-(2**40), writer.add_int64), "f32": (0.5, writer.add_float32)}
    values |= {"b": (True, writer.add_bool), "s": ("é", writer.add_string), "a": ([1.5, 2.5], writer.add_array)}
    values |= {"w": (["x", ""], writer.add_array)}
    for key, (value, add) in values.items():
        add(f"x.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert gguf_metadata.read(path, "x.") == {f"x.{key}": value for key, (value, _) in values.items()}


def test_only_keys_of_the_prefix(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("a.x", "1")
    writer.add_string("b.x", "2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert gguf_metadata.read(path, "b.") == {"b.x": "2"}


def test_arrays_longer_than_the_file_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "model.gguf"
    header = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    key = (1).to_bytes(8, "little") + b"k" + (9).to_bytes(4, "little")
    for item in (8, 9, 4):
        path.write_bytes(header + key + item.to_bytes(4, "little") + (2**60).to_bytes(8, "little"))
        with pytest.raises(ValueError, match="damaged"):
            gguf_metadata.read(path, "")
