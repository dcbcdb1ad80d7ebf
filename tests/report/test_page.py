"""The report of a run and of several: what is there is shown, what is broken is named, nothing secret, nothing from a network."""

import json
import re
import subprocess
import sys

import pytest

from slca.report.__main__ import main
from slca.report.episodes import episode_file, save_episodes
from slca.report.metrics import Writer
from slca.report.page import results_table, write_report
from tests.report.synthetic import batch


def row(name, value, split="heldout_tasks", temperature=1.0):
    return {"name": name, "split": split, "temperature": temperature, "metrics": {"success@0.9": value}}


def run(folder, seed=0, algorithm="slca", values=(0.1, 0.4, 0.6), episodes=False):
    with Writer(folder) as writer:
        for step in range(4):
            writer.write(step, {"rollout/reward/tool": 0.1 * step + 0.01 * seed, "time/step": 30.0})
    (folder / "config.json").write_text(json.dumps({"run": {"seed": seed}, "credit": {"algorithm": algorithm}}))
    rows = [row(name, value) for name, value in zip(("untrained", "after SFT", "after RL"), values)]
    (folder / "results.json").write_text(json.dumps({"rows": rows}))
    if episodes:
        e, rollouts, credits, words, segments = batch(groups=1, hostile=True)
        save_episodes(episode_file(folder, 3), e, rollouts, credits, words.decode, segments=segments, step=3)
    return folder


def test_a_run_with_everything(tmp_path):
    page = write_report(run(tmp_path, episodes=True)).read_text()
    assert [p.name for p in tmp_path.glob("*.html")] == ["report.html"]
    for text in (
        "untrained",
        "after SFT",
        "after RL",
        "0.600 <small>+0.500</small>",
        "Reward by channel",
        "last RL step 3, 2 min 00 s in timed phases",
    ):
        assert text in page
    assert "step 3, 4 of 4 episodes" in page and "credit.algorithm" in page
    assert not re.search(r"(?:src|href)=\"(?!data:,)", page) and "@import" not in page and "url(" not in page


def test_an_empty_run_and_a_broken_one_still_have_a_page(tmp_path):
    assert "No metrics yet" in write_report(tmp_path).read_text()
    (tmp_path / "metrics.jsonl").write_text("<b>broken\n")
    (tmp_path / "results.json").write_text("{")
    episode_file(tmp_path, 1).parent.mkdir()
    episode_file(tmp_path, 1).write_bytes(b"no gzip")
    page = write_report(tmp_path).read_text()
    assert page.count('class="problem"') == 3 and "metrics.jsonl:1" in page and "step_000001.jsonl.gz" in page
    assert "<b>broken" not in page


def test_no_secret_reaches_the_page(tmp_path, monkeypatch):
    monkeypatch.setenv("SLCA_JUDGE_KEY", "canary-31337-key")
    run(tmp_path)
    config = {"reward": {"judge_key_env": "SLCA_JUDGE_KEY", "judge_url": "http://me:password@judge/canary-31337-key"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    page = write_report(tmp_path).read_text()
    assert "canary" not in page and "me:password" not in page and "SLCA_JUDGE_KEY" in page


def test_seeds_are_joined_and_experiments_set_side_by_side(tmp_path):
    folders = [tmp_path / name for name in ("slca_0", "slca_1", "grpo_0")]
    for seed, (folder, algorithm) in enumerate(zip(folders, ("slca", "slca", "grpo"))):
        folder.mkdir()
        run(folder, seed, algorithm, values=(0.1, 0.4, 0.6 + 0.1 * seed))
    page = write_report(*folders, out=tmp_path / "all.html").read_text()
    assert (
        "after RL · slca_0 (2 seeds)</th>" in page
        and "after RL · grpo_0</th>" in page
        and "slca_0 (n=2)" in page
        and 'class="band s0"' in page
    )
    assert "0.650 ± 0.635" in page  # 12.7062 * 0.0707107 / sqrt(2) = 0.6353
    assert re.search(r"credit.algorithm</th><td>&quot;slca&quot;</td><td>&quot;slca&quot;</td><td>&quot;grpo&quot;", page)


def test_a_row_without_metrics_is_named():
    with pytest.raises(ValueError, match="a row needs"):
        results_table({"a": [{"rows": [{"name": "untrained"}]}]})
    assert results_table({"a": [{}]}) == ""


def test_other_metrics_fold_away_and_evaluations_of_the_run_are_curves(tmp_path):
    rows = [row("after SFT", 0.2), row("RL step 10", 0.5), row("after RL", 0.6)]
    for each in rows:
        each["metrics"]["end/answered"] = 0.9
    html = results_table({"a": [{"rows": rows}]})
    assert "RL step" not in html and "<details>" in html and html.index("end/answered") > html.index("<details>")
    with Writer(tmp_path) as writer:
        for step, value in ((0, 0.2), (10, 0.5), (20, 0.6)):
            scores = {"eval/heldout_tasks/t1/success@0.9": value, "eval/heldout_tasks/t1/end/answered": 0.9}
            writer.write(step, scores, phase="eval")
    page = write_report(tmp_path).read_text()
    assert "Evaluation: success@0.9" in page and "Other evaluation scores" not in page  # those are in the table


def test_a_metric_that_a_stage_lacks_is_a_dash():
    rows = [row("untrained", 0.5), {**row("after RL", 0.0), "metrics": {"summary": 1.0}}]
    html = results_table({"a": [{"rows": rows}]})
    assert html.count("<td>–</td>") == 2 and "1.000" in html and "<small>" not in html


def test_the_command_writes_names_the_file_and_refuses_a_missing_run(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run(tmp_path / name)
    assert main([str(tmp_path / "a")]) == 0 and capsys.readouterr().out.strip() == str(tmp_path / "a" / "report.html")
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0 and (tmp_path / "a" / "comparison.html").exists()
    capsys.readouterr()
    assert main([str(tmp_path / "nowhere")]) == 2 and "no run folder" in capsys.readouterr().err


def test_help_names_purpose_example_and_exit_codes_and_loads_nothing_heavy():
    code = "import sys; from slca.report.__main__ import main\ntry: main(['--help'])\nfinally: print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "\nWrite the report of a run" in done.stdout and "Exit codes" in done.stdout
    assert "python -m slca.report runs/" in done.stdout and done.stdout.endswith("False\n")
