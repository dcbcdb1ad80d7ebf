"""Every metric is in one plot; seeds become a mean with Student's interval."""

import numpy as np

from slca.report.curves import assign, compare_plots, over_seeds, run_plots, series


def test_every_name_is_in_exactly_one_plot_and_none_is_lost():
    names = [
        "rollout/reward/tool", "rollout/success@0.9", "rollout/end/answered", "train/clip_low", "eval/heldout_tasks/t0/summary",
        "eval/heldout_tools/t0/summary", "eval/heldout_tools/t0/name", "time/rollout", "time/duration", "sys/rss", "rollout/name", "rollout/tokens/tool",
        "train/kl/old", "train/sampler_gap", "train/ratio", "sgls/cache/hit", "mine/new",
    ]  # fmt: skip
    plots = assign(names)
    assert sorted(name for _, _, members in plots for name in members) == sorted(names)
    titles = {name: title for title, _, members in plots for name in members}
    assert titles["rollout/reward/tool"] == "Reward by channel" and titles["time/duration"] == "Time per phase"
    assert titles["eval/heldout_tasks/t0/summary"] == titles["eval/heldout_tools/t0/summary"] == "Evaluation: summary"
    assert titles["eval/heldout_tools/t0/name"] == "Other evaluation scores: eval/heldout_tools/t0"
    assert titles["mine/new"] == "Other: mine"


def test_null_is_a_gap_and_the_cold_start_has_its_own_steps():
    rows = [
        {"step": 7, "phase": "sft", "sft/loss": 2.0, "time/step": 1.0},
        {"step": 0, "phase": "rl", "train/kl/old": None, "time/step": 3.0, "name": "text is no metric"},
        {"step": 1, "phase": "rl", "train/kl/old": 0.5},
    ]
    found = series(rows)
    assert sorted(found) == ["sft/loss", "sft/time/step", "time/step", "train/kl/old"]
    assert found["sft/loss"][0].tolist() == [7.0]
    assert np.array_equal(found["train/kl/old"][1], [np.nan, 0.5], equal_nan=True)


def test_lines_drop_what_their_names_share():
    rows = [{"step": 0, "rollout/reward/tool": 1.0, "rollout/reward/summary": 0.5}]
    ((title, _, lines),) = run_plots(rows)
    assert title == "Reward by channel" and [line.name for line in lines] == ["summary", "tool"]


def test_seeds_give_the_mean_and_students_interval():
    x = np.array([0.0, 1.0])
    line = over_seeds("slca", [(x, np.array([1.0, 4.0])), (x, np.array([2.0, 4.0])), (x, np.array([3.0, 4.0]))])
    assert line.name == "slca (n=3)" and line.y.tolist() == [2.0, 4.0]
    half = 4.302652729911275 * 1.0 / np.sqrt(3)  # t(0.975, 2 degrees of freedom) * s / sqrt(n)
    np.testing.assert_allclose(line.high - line.y, [half, 0.0], atol=1e-12)


def test_a_step_that_one_seed_lacks_is_the_mean_of_the_others():
    line = over_seeds("slca", [(np.array([0.0, 1.0]), np.array([1.0, 5.0])), (np.array([0.0]), np.array([3.0]))])
    assert line.y.tolist() == [2.0, 5.0] and np.isnan(line.high[1]) and np.isfinite(line.high[0])


def test_a_comparison_has_one_plot_a_metric_and_one_line_a_group():
    rows = [{"step": 0, "train/loss": 1.0, "train/kl/old": 2.0}]
    plots = compare_plots({"slca": [rows, rows], "grpo": [[{"step": 0, "train/loss": 3.0}]]})
    assert {title: [line.name for line in lines] for title, _, lines in plots} == {
        "train/loss": ["slca (n=2)", "grpo"],
        "train/kl/old": ["slca (n=2)"],
    }


def test_more_lines_than_styles_become_several_plots_and_idle_ones_are_only_named():
    names = [f"rollout/error/kind{k}" for k in range(10)]
    rows = [{"step": 0, **dict.fromkeys(names, 1.0), "rollout/error/never": 0.0}]
    plots = run_plots(rows)
    assert [title for title, _, _ in plots] == ["Call errors (1 of 2)", "Call errors (2 of 2)"]
    assert [len(lines) for _, _, lines in plots] == [9, 2]  # eight styles and the idle line, then the rest


def test_the_plots_of_the_first_day_have_a_place_of_their_own():
    names = {
        "rollout/reward_std/tool": "Spread of rewards inside groups", "rollout/credit/zero_variance/tool": "Groups without spread by channel",
        "rollout/reward/unscored": "Unscored rollouts", "rollout/advantage/tool_min": "Advantage by segment", "rollout/token_share/tool": "Tokens by segment",
        "train/gradient/tool": "Gradient by segment", "train/sampler_gap_max": "Gap between sampler and trainer", "train/ratio_sampler_max": "Ratio",
        "train/ess": "Effective sample size", "rollout/length/policy": "Lengths", "rollout/end/truncated": "End reasons", "rollout/forged": "Cut, forged, repeated",
        "rollout/duplicates": "Cut, forged, repeated", "rollout/error/unknown_tool": "Call errors", "rollout/status/ok": "Tool results",
        "time/simulate_p95": "Latency of the simulator", "sgls/cache_hit_rate": "Simulator: sgls", "judge/unreadable": "Judge",
        "rollout/cost/tokens_per_solved": "Cost of a solved rollout", "sys/tokens_sampled": "Throughput", "sys/rss_max": "Memory", "sys/hbm_max": "Memory",
        "sys/compiles_all": "Compilations", "train/padding": "Use of the hardware", "train/clip_high": "Clip fraction", "train/kl/reference": "KL",
    }  # fmt: skip
    titles = {name: title for title, _, members in assign(names) for name in members}
    assert titles == names
