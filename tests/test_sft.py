"""Cold start: which tokens are learnt, how a batch is filled, what is made wrong on purpose, what cannot be learnt from."""

from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import pytest

from slca.chat import tokenizer as tokenizers
from slca.chat.template import Template
from slca.learn.rows import first_fit_decreasing
from slca.sft import corrupt, demonstrations, encode_demo
from slca.tasks.datasets import stream
from slca.tasks.schema import public_specs
from slca.tasks.synthesize import tasks as made

CALLS = [task for task, _ in zip(made(0, "train"), range(40)) if any(m.get("tool_calls") for m in task.demo)]
CALLS_IN_A_ROUND = list(islice(cycle(CALLS), 600))


class Tasks:
    """A stream of the given tasks."""

    def __init__(self, tasks):
        self._tasks, self.position = tasks, 0

    def next(self, n):
        self.position += n
        return [self._tasks[k % len(self._tasks)] for k in range(self.position - n, self.position)]

    def back(self, n):
        self.position -= n


@pytest.fixture(scope="module")
def template():
    return Template(tokenizers.load("tiny"))


def test_only_assistant_tokens_and_their_stop_are_learnt(template):
    task = next(task for task in CALLS if [m["role"] for m in task.demo] == ["assistant", "tool", "assistant"])
    tokens, weight = encode_demo(task, template)
    decode = template.tokenizer.decode
    spans = np.flatnonzero(np.diff(np.concatenate([[0], weight, [0]])))
    learnt = [tokens[a:b] for a, b in spans.reshape(-1, 2)]
    assert len(learnt) == 2 and all(span[-1] in template.stop_ids for span in learnt)
    assert task.demo[0]["tool_calls"][0]["function"]["name"] in decode(learnt[0].tolist())
    assert task.demo[2]["content"] in decode(learnt[1].tolist())
    assert task.demo[1]["content"] in decode(tokens[weight == 0].tolist())
    prompt = template.prompt(task.messages, public_specs(task.tools))
    assert tokens[: len(prompt)].tolist() == list(prompt) and not weight[: len(prompt)].any()


def test_a_batch_holds_the_demonstrations_and_weighs_their_tokens_alike(config, template):
    config.sft.update(batch_rows=4, row_length=1024)
    batch, counts = demonstrations(Tasks(CALLS), template, config, step=0)
    encoded = [encode_demo(task, template) for task, _ in zip(cycle(CALLS), range(int(counts["tasks"])))]
    weighed = batch.loss_weight > 0
    assert int(weighed.sum()) == sum(int(w.sum()) for _, w in encoded)
    np.testing.assert_allclose(batch.loss_weight[weighed], 1 / weighed.sum(), rtol=1e-6)
    assert batch.tokens.shape[1] == 1024 and counts["too_long"] == counts["untaught"] == 0


def test_what_teaches_nothing_is_left_out_and_counted(config, template):
    config.sft.update(batch_rows=2, row_length=1024)
    silent = [replace(CALLS[0], demo=[]), replace(CALLS[0], demo=[{"role": "tool", "content": "x"}])]
    _, counts = demonstrations(Tasks([*silent, CALLS[1]]), template, config, step=0)
    assert counts["untaught"] == 2 * counts["tasks"] > 0
    with pytest.raises(ValueError, match="1000 have no assistant turn"):
        demonstrations(Tasks(silent), template, config, step=0)
    config.sft.row_length = 64
    with pytest.raises(ValueError, match="of 1000 demonstrations 1000 are longer"):
        demonstrations(Tasks(CALLS), template, config, step=0)


def held(batch):
    """The token rows of the demonstrations in a batch."""
    found = []
    for tokens, episode in zip(np.asarray(batch.tokens), np.asarray(batch.episode), strict=True):
        found += [tuple(tokens[episode == n].tolist()) for n in range(1, episode.max() + 1)]
    return sorted(found)


def test_every_demonstration_is_learnt_once_and_in_its_turn(config, template):
    """What no longer fits begins the next step. Rows of a tight length: first-fit wants another row in many of the steps."""
    config.sft.update(batch_rows=6, row_length=320)
    tasks, learnt, position = Tasks(CALLS), [], 0
    for step in range(25):
        batch, counts = demonstrations(tasks, template, config, step)
        assert batch.tokens.shape == (config.train.micro_rows, 320)  # rows are padded to whole micro-batches
        used, position = CALLS_IN_A_ROUND[position : tasks.position], tasks.position
        encoded = [encode_demo(task, template)[0] for task in used]
        short = [tuple(tokens.tolist()) for tokens in encoded if len(tokens) <= 320]
        assert held(batch) == sorted(short) and len(short) == counts["tasks"]
        assert counts["tasks"] + counts["too_long"] == len(used)
        learnt.append(counts["tasks"])
    assert len(set(learnt)) > 1 and position < len(CALLS_IN_A_ROUND)


def test_the_rows_are_as_full_as_first_fit_makes_them(config, template):
    """One more demonstration would need another row, or more tokens than there are places."""
    config.sft.update(batch_rows=3, row_length=320)
    tasks = Tasks(CALLS)
    for step in range(10):
        before = tasks.position
        demonstrations(tasks, template, config, step)
        lengths = [len(encode_demo(task, template)[0]) for task in CALLS_IN_A_ROUND[before : tasks.position + 20]]
        lengths = [n for n in lengths if n <= 320]
        kept = sum(len(encode_demo(task, template)[0]) <= 320 for task in CALLS_IN_A_ROUND[before : tasks.position])
        assert first_fit_decreasing(lengths[:kept], 320)[2] <= 3 < first_fit_decreasing(lengths[: kept + 1], 320)[2]


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_step_of_so_many_demonstrations(config, template, wanted):
    config.sft.update(batch_rows=4, row_length=1024, demonstrations=wanted)
    tasks = Tasks(CALLS)
    for step in range(3):
        batch, counts = demonstrations(tasks, template, config, step)
        assert counts["tasks"] == wanted and tasks.position == wanted * (step + 1)
        used = CALLS[wanted * step : wanted * (step + 1)]
        assert held(batch) == sorted(tuple(encode_demo(task, template)[0].tolist()) for task in used)


def test_no_more_demonstrations_than_the_rows_hold(config, template):
    config.sft.update(batch_rows=1, row_length=1024, demonstrations=1000)
    tasks = Tasks(CALLS)
    few, _ = demonstrations(tasks, template, config, 0)
    config.sft.demonstrations = 0
    assert held(demonstrations(Tasks(CALLS), template, config, 0)[0]) == held(few) and 1 < tasks.position < 1000


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_step_is_a_function_of_the_position_it_begins_at(config, template, noise):
    config.tasks.update(domains=("weather",), kinds=("single", "distractor"), max_tools=2)
    config.sft.update(batch_rows=6, row_length=320, noise=noise)
    straight, begun = stream(config.tasks, "train", 0), stream(config.tasks, "train", 0)
    whole = [demonstrations(straight, template, config, step)[0] for step in range(6)]
    for step in range(3):
        demonstrations(begun, template, config, step)
    resumed = stream(config.tasks, "train", 0)
    resumed.restore(begun.state())
    for step in range(3, 6):
        batch, _ = demonstrations(resumed, template, config, step)
        np.testing.assert_array_equal(batch.tokens, whole[step].tokens)
        np.testing.assert_array_equal(batch.loss_weight, whole[step].loss_weight)
    assert resumed.state() == straight.state()


def test_noise_is_seeded_and_spares_what_it_should():
    task = CALLS[0]
    clean = corrupt(task, np.random.default_rng(0), 0.0)
    assert clean is task
    wrong = [corrupt(task, np.random.default_rng([0, n]), 1.0) for n in range(20)]
    again = [corrupt(task, np.random.default_rng([0, n]), 1.0) for n in range(20)]
    assert wrong == again and all(one.demo != task.demo for one in wrong)
    assert all(one.messages == task.messages and one.gold_steps == task.gold_steps for one in wrong)
    assert all([m for m in one.demo if m["role"] == "tool"] == [m for m in task.demo if m["role"] == "tool"] for one in wrong)
