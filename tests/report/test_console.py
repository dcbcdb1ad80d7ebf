"""The table at the end of a run."""

from slca.report.console import print_table


def test_a_row_a_stage_and_nothing_without_an_evaluation(capsys):
    print_table([])
    assert capsys.readouterr().out == ""
    rows = [
        {"name": name, "split": "heldout_tasks", "temperature": 0.0, "metrics": {"name": 0.25}}
        for name in ("untrained", "RL step 5")
    ]
    print_table(rows)
    said = capsys.readouterr().out
    assert "heldout_tasks" in said and "0.250" in said and "untrained" in said and "RL step" not in said
