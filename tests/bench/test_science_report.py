"""Means, intervals and paired differences of made-up results that can be worked out by hand; one run's numbers; the figures."""

import json
import math

import numpy as np
import pytest

from bench import figures, science_report
from bench.science_report import differences, growth, means, outcome

T2, T1 = 4.302653, 12.706205  # Student's t, 97.5 %, of two degrees of freedom and of one


def numbers(**metrics):
    return {name: metrics.get(name, np.nan) for name in science_report.NAMES}


def made_up():
    """slca 0.5, 0.6, 0.7 and grpo 0.4, 0.4, 0.4 in Success@0.9; toolpo has one seed."""
    runs = {("slca", s): numbers(**{"Success@0.9": v, "greedy": 0.5}) for s, v in enumerate((0.5, 0.6, 0.7))}
    runs |= {("grpo", s): numbers(**{"Success@0.9": 0.4}) for s in range(3)}
    return runs | {("toolpo", 0): numbers(**{"Success@0.9": 0.45})}


def test_means_with_their_intervals():
    """Standard deviation of 0.5, 0.6, 0.7 is 0.1: half width t * 0.1 / sqrt 3 = 0.248."""
    table = means({"base": made_up()}, science_report.NAMES).splitlines()
    assert table[0] == "| condition | method | n | Success@0.9 | greedy |"  # what no run has is no column
    assert f"{T2 * 0.1 / math.sqrt(3):.3f}" == "0.248"
    assert table[2] == "| base | slca | 3 | 0.600 ± 0.248 | 0.500 |"  # no spread, no interval
    assert table[3].startswith("| base | grpo | 3 | 0.400") and table[3].endswith("| none |")
    assert table[4] == "| base | toolpo | 1 | 0.450 | none |"  # nor of one seed


def test_of_the_tasks_the_fewest_are_shown():
    runs = {("slca", 0): numbers(**{"held-out tasks": 2048}), ("slca", 1): numbers(**{"held-out tasks": 128})}
    assert means({"base": runs}, science_report.NAMES).splitlines()[2] == "| base | slca | 2 | 128 |"


def test_differences_are_paired_by_seed():
    """0.1, 0.2, 0.3 less: mean 0.2 +- 0.248; of 8 sign flips two are as extreme: p = 0.25. One pair: 2 of 2 flips."""
    table = differences({"base": made_up()}).splitlines()
    assert table[2] == "| base | grpo | 3 | +0.200 ± 0.248, p = 0.250" + 7 * " | none" + " |"
    assert table[3].startswith("| base | toolpo | 1 | +0.050, p = 1.000 |")


def test_intervals_without_zero_are_bold():
    """0.28, 0.3, 0.32 less: standard deviation 0.02, half width t * 0.02 / sqrt 3 = 0.050."""
    runs = {("slca", s): numbers(greedy=v) for s, v in enumerate((0.58, 0.6, 0.62))}
    runs |= {("grpo", s): numbers(greedy=0.3) for s in range(3)}
    assert "| none | **+0.300 ± 0.050**, p = 0.250 | none |" in differences({"base": runs})


def test_growth_is_of_differences_of_the_same_seeds():
    """Base 0.1, 0.2, 0.3, then 0.2, 0.4 (the third seed is missing): 0.1 and 0.2 more, mean 0.15; two pairs: 2 of 4 flips."""
    scores = {("slca", 0): 0.9, ("slca", 1): 0.9, ("grpo", 0): 0.7, ("grpo", 1): 0.5}
    noisy = {run: numbers(**{"Success@0.9": score}) for run, score in scores.items()}
    table = growth({"base": made_up(), "noise 1": noisy}).splitlines()
    assert len(table) == 3 and table[2].startswith("| noise 1 | grpo | 2 | +0.150 ± 0.635, p = 0.500 | none")
    assert f"{T1 * math.sqrt(0.005 / 2):.3f}" == "0.635"


def test_averages_over_noise_levels_are_a_seeds_own():
    """Base 0.1, 0.2, 0.3; noise 1 of the first two 0.2, 0.4; the correlated noise counts for nothing: 0.15, 0.3, 0.3, mean 0.25, standard
    deviation 0.0866, half width t * 0.0866 / sqrt 3 = 0.215."""
    scores = {("slca", 0): 0.9, ("slca", 1): 0.9, ("grpo", 0): 0.7, ("grpo", 1): 0.5}
    noisy = {run: numbers(**{"Success@0.9": score}) for run, score in scores.items()}
    table = science_report.averaged({"base": made_up(), "noise 1": noisy, "noise 1, rho 0.5": noisy}).splitlines()
    assert table[2].startswith("| 2 levels | grpo | 3 | **+0.250 ± 0.215**, p = 0.250 | none")
    assert table[3].startswith("| 1 level | toolpo | 1 | +0.050")


def test_evaluations_on_other_tasks_are_not_compared():
    """Of the first seed both met 2,048 tasks, of the second one alone: its greedy score and its training are compared all the same."""
    runs = {}
    for seed, tasks in ((0, 2048), (1, 128)):
        runs["slca", seed] = numbers(
            **{"held-out tasks": 2048, "Success@0.9": 0.6, "greedy": 0.6, "area under Success@0.9": 0.6}
        )
        runs["grpo", seed] = numbers(
            **{"held-out tasks": tasks, "Success@0.9": 0.5, "greedy": 0.4, "area under Success@0.9": 0.3}
        )
    found = {"base": runs, "noise 1": {run: numbers(**{**one, "held-out tasks": 128}) for run, one in runs.items()}}
    row = differences(found).splitlines()[2].split(" | ")
    assert row[3] == "+0.100, p = 1.000" and row[4].startswith("**+0.200") and row[9].startswith("**+0.300")
    row = growth(found).splitlines()[2].split(" | ")
    assert row[3] == "none" and row[4].startswith("+0.000") and row[9].startswith("+0.000")


def test_runs_of_a_method_that_noise_does_not_reach_stand_for_every_noise():
    runs = [("base", "slca"), ("base", "rltr"), ("noise 1", "slca"), ("noise 1, rho 0.5", "slca"), ("sparse", "slca")]
    found = {condition: {} for condition, _ in runs}
    for condition, algorithm in runs:
        found[condition][algorithm, 0] = numbers(greedy=0.5 if algorithm == "slca" else 0.3)
    pairs = {condition: own for condition, own in science_report.paired(found).items() if own}
    assert set(pairs) == {"base", "noise 1", "noise 1, rho 0.5"}
    assert all(own["rltr"][0][science_report.PAIRED.index("greedy")] == pytest.approx(0.2) for own in pairs.values())
    assert "| noise 1 | rltr |" in differences(found) and "rltr" not in means({"noise 1": found["noise 1"]}, ("greedy",))


@pytest.fixture
def folder(tmp_path):
    """One run: two evaluations, 25 RL steps."""
    rows = [
        {"name": "after SFT", "split": "heldout_tasks", "temperature": 1.0, "metrics": {"success@0.9": 0.1}},
        {
            "name": "after RL",
            "split": "heldout_tasks",
            "temperature": 1.0,
            "n": 128,
            "metrics": {"success@0.9": 0.6, "tool_turns": 1.5, "cost/calls_per_solved": 2.5},
        },
        {"name": "after RL", "split": "heldout_tasks", "temperature": 0.0, "metrics": {"success@0.9": 0.7}},
    ]
    (tmp_path / "results.json").write_text(json.dumps({"rows": rows}))
    lines = [{"phase": "sft", "step": 1, "rollout/success@0.9": 9.0}]
    for step in range(1, 26):
        lines.append({"phase": "rl", "step": step, "rollout/success@0.9": step / 25})
    lines[1]["rollout/success@0.9"] = None
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_outcome_of_one_run(folder):
    """Area: mean of 2/25 ... 25/25 = 0.54; curves: windows 1-10 (the first unknown) and 11-20."""
    found = outcome(folder)
    assert (
        found["numbers"]["Success@0.9"] == 0.6 and found["numbers"]["greedy"] == 0.7 and found["numbers"]["tool turns"] == 1.5
    )
    assert found["numbers"]["area under Success@0.9"] == pytest.approx(0.54)
    assert found["numbers"]["its last 20 steps"] == pytest.approx(15.5 / 25)  # 6 to 25
    assert found["numbers"]["calls per solved"] == 2.5 and found["numbers"]["held-out tasks"] == 128
    assert "summary" not in found["numbers"] and "kappa T" not in found["numbers"]
    x, y = found["curves"]["rollout/success@0.9"]
    assert x == [10, 20] and y == [pytest.approx(0.24), pytest.approx(0.62)]


def test_the_evaluation_on_more_tasks_takes_the_place_of_the_last_one(folder):
    metrics = {"success@0.9": {"mean": 0.55, "n": 2048}, "cost/calls_per_solved": {"mean": math.nan, "n": 0}}
    cell = {"split": "heldout_tasks", "temperature": 1.0, "tasks": 2048, "metrics": metrics}
    (folder / "evaluation.json").write_text(json.dumps({"cells": [cell]}))
    found = outcome(folder)["numbers"]
    assert found["Success@0.9"] == 0.55 and found["held-out tasks"] == 2048
    assert found["greedy"] == 0.7  # only what was evaluated once more
    assert "tool turns" not in found and "calls per solved" not in found  # nothing of the smaller one beside it


def lines():
    curve = {name: [[10, 20], [0.1, 0.2]] for name in science_report.CURVES}
    runs = [("base", "slca", s, 0.5 + 0.1 * s) for s in (0, 1)] + [("base", "grpo", s, 0.4) for s in (0, 1)]
    runs.append(("noise 1", "grpo", 0, 0.3))
    return [{"run": [c, a, s], "numbers": {"Success@0.9": v}, "curves": curve} for c, a, s, v in runs]


def test_differences_of_the_figure():
    """0.1 and 0.2: mean 0.15, half width t * 0.0707 / sqrt 2 = t / 20; a condition without slca is left out."""
    found = figures.differences(lines(), "Success@0.9")
    assert set(found) == {"grpo"} and set(found["grpo"]) == {"base"}
    interval = found["grpo"]["base"]
    assert interval.mean == pytest.approx(0.15) and interval.high - interval.mean == pytest.approx(T1 / 20, rel=1e-4)


def test_the_same_results_draw_the_same_bytes(tmp_path):
    pytest.importorskip("matplotlib", reason="figures are drawn with the extra `notebook`")
    results = tmp_path / "science.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in lines()))
    drawn = []
    for name in ("a", "b"):
        path = figures.science(tmp_path / name, results)
        drawn.append({file.name: file.read_bytes() for file in path.parent.iterdir()})
    assert drawn[0] == drawn[1] and set(drawn[0]) == {"science.svg", "science_base.svg", "science_noise-1.svg"}
    text = drawn[0]["science.svg"].decode()
    assert "base: grpo (n = 2)" in text and "<dc:date>" not in text
