"""Cold start: which tokens are learnt, how a batch is filled, what is made wrong on purpose, what cannot be learnt from."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from slca.chat import tokenizer as tokenizers
from slca.chat.template import Template
from slca.sft import corrupt, demonstrations, encode_demo
from slca.tasks.schema import public_specs
from slca.tasks.synthesize import tasks as made

CALLS = [task for task, _ in zip(made(0, "train"), range(40)) if any(m.get("tool_calls") for m in task.demo)]


class Tasks:
    """A stream of the given tasks."""

    def __init__(self, tasks):
        self._tasks = cycle(tasks)

    def next(self, n):
        return [next(self._tasks) for _ in range(n)]


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
    assert counts["untaught"] in (2 * counts["tasks"], 2 * counts["tasks"] - 1, 2 * counts["tasks"] - 2) and counts["tasks"] > 0
    with pytest.raises(ValueError, match="1000 have no assistant turn"):
        demonstrations(Tasks(silent), template, config, step=0)
    config.sft.row_length = 64
    with pytest.raises(ValueError, match="of 1000 demonstrations 1000 are longer"):
        demonstrations(Tasks(CALLS), template, config, step=0)


def test_noise_is_seeded_and_spares_what_it_should():
    task = CALLS[0]
    clean = corrupt(task, np.random.default_rng(0), 0.0)
    assert clean is task
    wrong = [corrupt(task, np.random.default_rng([0, n]), 1.0) for n in range(20)]
    again = [corrupt(task, np.random.default_rng([0, n]), 1.0) for n in range(20)]
    assert wrong == again and all(one.demo != task.demo for one in wrong)
    assert all(one.messages == task.messages and one.gold_steps == task.gold_steps for one in wrong)
    assert all([m for m in one.demo if m["role"] == "tool"] == [m for m in task.demo if m["role"] == "tool"] for one in wrong)
