"""Files that are whole or not there, and what is said of a place that cannot be written."""

import json

import pytest

from slca.files import whole
from slca.tasks import catalog, outside, toucan
from slca.tasks.datasets import write_jsonl


def test_a_file_is_whole_or_not_there(tmp_path):
    with whole(tmp_path / "a.txt") as file:
        file.write_text("new")
        assert not (tmp_path / "a.txt").exists()
    with pytest.raises(KeyError), whole(tmp_path / "a.txt") as file:
        file.write_text("half")
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"] and (tmp_path / "a.txt").read_text() == "new"


def test_two_processes_write_the_same_file_side_by_side(tmp_path, monkeypatch):
    with whole(tmp_path / "a.txt") as mine:
        mine.write_text("mine, wh")
        monkeypatch.setattr("os.getpid", lambda: -1)
        with whole(tmp_path / "a.txt") as theirs:
            theirs.write_text("theirs")
        assert (tmp_path / "a.txt").read_text() == "theirs" and mine.read_text() == "mine, wh"
        mine.write_text("mine, whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"] and (tmp_path / "a.txt").read_text() == "mine, whole"


@pytest.mark.parametrize("place", ["none/tasks.jsonl", "folder"])
def test_a_place_that_cannot_be_written_is_named_as_it_was_given(tmp_path, place):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=f"{tmp_path / place}'$"):
        write_jsonl(tmp_path / place, [])
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_commands_name_the_place_that_they_cannot_write(tmp_path, capsys):
    from slca.report.__main__ import main as report
    from tests.report.test_page import run

    row = {
        "instruction": json.dumps({"name": "F", "input_parameters": {}}),
        "input": "User: go",
        "output": "API-Request: [F()]",
    }
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    (tmp_path / "folder").mkdir()
    run(tmp_path, 0, "slca")
    taken = str(tmp_path / "folder")
    for main, flags in ((report, [str(tmp_path), f"--out={taken}"]), (outside.main, ["api-bank", str(tmp_path / "rows.json"), "--out", taken])):  # fmt: skip
        assert main(flags) == 2
        said = capsys.readouterr().err
        assert f"'{taken}'" in said and ".tmp" not in said and ".partial" not in said and said.count("\n") == 1
    (tmp_path / "out" / "toucan_rl.jsonl").mkdir(parents=True)
    assert toucan.main(["--rl", str(tmp_path / "rows.json"), "--out", str(tmp_path / "out")]) == 1
    assert toucan.main(["--rl", str(tmp_path / "rows.json"), "--out", str(tmp_path / "rows.json")]) == 2
    assert "rows.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "text", "said"),
    [
        ("--openapi", '{"openapi": "2.0"}', "not an OpenAPI 3.x document"), ("--openapi", "[1]", "not an OpenAPI 3.x document"),
        ("--openapi", '{"openapi": "3.0.0", "paths": 5}', "`paths` must be an object"), ("--mcp", "{}", "must hold a list `tools`"),
        ("--functions", "3", "must be a list or an object"), ("--functions", "{", "line 1 column 2"),
    ],
)  # fmt: skip
def test_the_catalogue_names_the_program_and_the_file(tmp_path, capsys, flag, text, said):
    path = tmp_path / "api.json"
    path.write_text(text)
    assert catalog.main([flag, str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"slca.tasks.catalog: {path}: ") and said in error and error.count("\n") == 1
