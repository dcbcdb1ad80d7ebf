"""The command line of the figures: results that are missing or something else are named."""

import json

import pytest

from bench import figures

TABLE = {"title": "small", "rows": [{"name": "ours"}]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "no results of `python -m bench.run step`"),
        ("[]", "no results of `python -m bench.run step`"),
        ("{", "cannot be read as JSON"),
        (json.dumps({"comparison": "rollout", "tables": []}), "no results of `python -m bench.run step`"),
        (json.dumps({"comparison": "step", "rounds": 5, "tables": []}), "without what the figure shows"),
        (json.dumps({"comparison": "step", "rounds": 5, "tables": [TABLE]}), "without what the figure shows"),
        (json.dumps({"comparison": "step", "rounds": 5, "tables": [{"title": "small", "rows": 1}]}), "without what"),
    ],
)
@pytest.mark.parametrize("names", [["step"], []])
def test_other_files_are_named(names, text, says, tmp_path, capsys):
    (tmp_path / "step.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        figures.main([*names, f"--folder={tmp_path}"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and f"{tmp_path}/step.json: " in said and says in said


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["rollout"], "/nowhere: there is no such folder"),
        ([], "/nowhere: there is no such folder"),
        (["step", "nothing"], "nothing unknown; there are rollout, "),
    ],
)
def test_wrong_arguments_are_named(argv, says, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        figures.main([*argv, f"--folder={tmp_path}/nowhere"])
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_missing_results_are_an_error_of_a_named_figure_alone(tmp_path, monkeypatch, capsys):
    for name in figures.RUNS:
        monkeypatch.setitem(figures.RUNS, name, tmp_path / "none.jsonl")
        monkeypatch.setitem(figures.FIGURES, name, lambda folder: None)
    assert figures.main([f"--folder={tmp_path}"]) == 0
    assert "rollout: no results yet" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        figures.main(["rollout", f"--folder={tmp_path}"])
    assert ended.value.code == 2 and f"no results in {tmp_path}: rollout; " in capsys.readouterr().err


def test_the_stored_results_can_be_drawn():
    found = {name: figures.load(name, figures.FOLDER) for name in figures.FIGURES if name not in figures.RUNS}
    assert any(found.values())
