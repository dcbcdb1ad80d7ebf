"""Every shipped config builds, is valid but for the files and packages it needs, and takes every variant."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs import default
from slca.learn.optim import schedule
from slca.rollout import episode as episode_rules
from slca.rollout.episode import Rules
from slca.start import check_tasks
from slca.tasks import toucan
from slca.types import Context, Observation, Task
from slca.validate import ConfigError, validate
from tests.tasks.test_toucan import SEARCH, SHAPES, TOOLS, dialogue, gold, rl_row

FILES = sorted(p.stem for p in (Path(default.__file__).parent).glob("*.py") if p.stem not in ("__init__", "default"))


def load(name, arg=None):
    module = importlib.import_module(f"configs.{name}")
    return module.get_config() if arg is None else module.get_config(arg)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("arg", [None, *default.ALGORITHM_ARGS])
def test_only_files_and_packages_may_be_missing(name, arg):
    config = load(name, arg)
    try:
        validate(config)
    except ConfigError as error:
        missing = ("no such folder", "is not installed; run `pip install")
        assert all(any(words in line for words in missing) for line in str(error).splitlines()), error


def raw_rows(folder):
    (folder / "raw.jsonl").write_text("".join(json.dumps(dialogue(f"s{i}")) + "\n" for i in range(12)))
    return ["--raw", "raw.jsonl", "--held-out", "3", "0"]


def the_papers_rows(folder):
    rl = rl_row(gold([SEARCH]))
    turns = [{"role": "user", "content": "Bees?"}, *SHAPES["openai"], {"role": "assistant", "content": "Here."}]
    for name, row in {"rl": rl, "eval": rl, "sft": {"messages": turns, "tools": TOOLS}}.items():
        (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    return ["--rl", "rl.jsonl", "--eval", "eval.jsonl", "--sft", "sft.jsonl"]


@pytest.mark.parametrize("rows", [raw_rows, the_papers_rows])
@pytest.mark.parametrize("name", FILES)
def test_every_config_finds_its_tasks_in_what_the_converter_writes(name, rows, tmp_path, monkeypatch):
    """Those with a data set of their own name the files that `slca.tasks.toucan` makes of either kind of rows."""
    config = load(name)
    if config.tasks.source == "botocore":
        pytest.importorskip("botocore")
    monkeypatch.chdir(tmp_path)
    assert toucan.main(rows(tmp_path)) == 0
    check_tasks(config)


@pytest.mark.parametrize("name", FILES)
def test_no_field_outside_the_default(name):
    """A config may change fields, not add them: every field has its remark in configs/default.py."""

    def paths(section, prefix=""):
        for key, value in section.items():
            yield from paths(value, f"{prefix}{key}.") if hasattr(value, "items") else [prefix + key]

    assert set(paths(load(name))) == set(paths(default.get_config()))


def test_every_field_has_a_remark():
    lines = Path(default.__file__).read_text().split("return select")[0].splitlines()
    bare = [
        line for line in lines if line.startswith("    ") and " = " in line and "ConfigDict()" not in line and "#" not in line
    ]
    assert bare == []


def test_paper_variant_sets_every_published_behaviour():
    config = load("7b", "slca_paper")
    assert config.credit.segmenter == "position"
    assert config.reward.judge_failure == "zero"
    assert config.reward.combine == "additive"
    assert config.reward.blocks == "tag"
    assert (config.sgls.mode, config.sgls.cache, config.sgls.state) == ("paper", "none", "none")


def episode_of(config, *turns):
    """The end, or None, of an episode of the config's rules whose turns make these calls (ids of equal calls; 0 = one that cannot be read)."""
    r = config.rollout
    rules = Rules(
        template=SimpleNamespace(suffix=lambda messages, new: [0]), capacity=10**6, own=10**6, max_turns=r.max_turns,
        max_calls=r.max_calls, max_malformed=r.max_malformed, max_repeats=r.max_repeats, max_turn_tokens=9,
        max_response_tokens=10**6, max_prompt_tokens=9, max_calls_per_turn=config.chat.max_calls_per_turn, wire="hermes",
        stop_ids=frozenset(), marker_ids=frozenset(),
    )  # fmt: skip
    state = episode_rules.new(Task("t", [], [], []), 0, 0, Context(group="t"))
    episode_rules.begin(state, [1], rules)
    for turn in turns:
        text = "".join(
            f'<tool_call>{{"name": "f", "arguments": {{"x": {x}}}}}</tool_call>' if x else "<tool_call>{oops</tool_call>"
            for x in turn
        )
        rules.template.tokenizer = SimpleNamespace(decode=lambda ids, text=text: text)
        rules = replace(rules, stop_ids=frozenset({7}))
        step = episode_rules.sampled(state, [5, 7], [0.0, 0.0], rules)
        if isinstance(step, episode_rules.Act):
            episode_rules.observed(state, [Observation("{}")] * len(step.calls), rules)
    return state.end


def test_an_episode_ends_as_in_the_release():
    """algorithms-core 1.9: no parsed call ends a rollout, nothing counts repeats, 20 calls are the most of one turn."""
    paper, safe = load("7b", "slca_paper"), load("7b")
    assert episode_of(paper, [0]) == "malformed_limit" and episode_of(safe, [0], [0], [0]) is None
    assert episode_of(paper, [0, 1]) is None
    assert episode_of(paper, [1], [1], [1], [1], [1], [1]) is None and episode_of(safe, [1], [1], [1], [1]) == "repeat_limit"
    full = [list(range(1 + 20 * k, 21 + 20 * k)) for k in range(7)]
    for config in (paper, safe):
        assert episode_of(config, *full[:6]) is None and episode_of(config, *full) == "max_turns"


def test_7b_is_the_papers_recipe():
    config = load("7b")
    assert (config.rollout.group, config.rollout.prompts, config.train.mini_batches) == (16, 128, 4)
    assert (config.optim.lr, config.loss.kl_coef, config.loss.kl) == (1e-6, 0.001, "k3")
    assert config.train.steps == 31_818 // 128


def test_7b_sft_is_the_papers_cold_start():
    """42,423 demonstrations, batch 32, twice: 32 in every step, which always fit, as none is longer than a row."""
    sft = load("7b_sft").sft
    assert sft.demonstrations == 32 <= sft.batch_rows and sft.row_length == 16_384
    assert 0 <= 2 * 42_423 - sft.steps * sft.demonstrations < 32
    assert (sft.lr, sft.schedule, sft.warmup) == (5e-6, "cosine", 0.1)


@pytest.mark.parametrize("name", FILES)
def test_learning_rate_at_its_landmarks(name):
    """M26: the schedule is sized by this run's steps."""
    config = load(name)
    steps = config.train.steps * config.train.mu * config.train.mini_batches
    if steps:
        rate = schedule(config.optim.schedule, config.optim.lr, steps, config.optim.warmup)
        assert max(float(rate(s)) for s in range(steps)) == pytest.approx(config.optim.lr, rel=1e-6)
    if config.sft.steps:
        rate = schedule(config.sft.schedule, config.sft.lr, config.sft.steps, config.sft.warmup)
        peak = max(float(rate(s)) for s in range(config.sft.steps))
        assert peak == pytest.approx(config.sft.lr, rel=1e-2)
        assert float(rate(config.sft.steps)) == pytest.approx(0.0, abs=config.sft.lr * 1e-3)
