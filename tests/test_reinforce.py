"""One RL step of the records that ask for more than packing and a loss, on a tiny random policy; resampling; gradient norms."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from configs import tiny
from slca import reinforce
from slca.algorithm_fit import apply_record
from slca.assemble import assemble, initial_params
from slca.learn.update import init_state
from slca.reinforce import describe, make_learn, make_step
from slca.report.metrics import finalize, merge
from slca.rewards.annotate import annotate
from slca.tasks.datasets import stream
from slca.types import TOOL, ToolCall
from slca.validate import validate
from tests.evals.test_indomain import episodes as rolled
from tests.rewards.episodes import calls, episode, good, says, task


def small(name, **changes):
    c = tiny.get_config(name)
    c.model.update(width=32, layers=1, heads=2, kv_heads=1, head_dim=16, ff=64, max_length=1024)
    c.tasks.domains = ("weather",)
    c.train.update(micro_rows=4, row_lengths=(512,))
    c.rollout.update(prompts=2, group=4, max_turn_tokens=16, max_response_tokens=48, slots=8)
    c.run.compile_cache = False
    for path, value in changes.items():
        section, field = path.split("__")
        c[section][field] = value
    validate(c)
    return c


@pytest.fixture(scope="module")
def base():
    """Parts for one device, shared by all records: only the algorithm differs."""
    original, jax.device_count = jax.device_count, lambda *_: 1
    yield assemble(small("slca"))
    jax.device_count = original


def run(base, config, reference=False, spare=None, number=0):
    """(outcome, change of the parameters) of one step."""
    parts = base._replace(algorithm=apply_record(config))
    params = initial_params(config, parts)
    before = jax.device_get(params)
    frozen = jax.tree.map(lambda x: x * 0.9, params) if reference else None
    optimizer = optax.sgd(1.0)
    step = make_step(config, parts, optimizer, reference=frozen, spare=spare)
    state, outcome = step(init_state(params, optimizer, jax.random.key(0)), stream(config.tasks, "train", 0).next(2), number)
    after = jax.device_get(state.params)
    return outcome, max(
        float(np.abs(a - b).max()) for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True)
    )


def test_sweeps_go_over_the_whole_batch(base, monkeypatch):  # M23, contract 10
    """mu = 2 over mini-batches a, b is a, b, a, b; old log-probs are taken once, before the first optimiser step."""
    order = []

    def score(params, batch):
        order.append(("old", batch))
        return f"old of {batch}"

    class Mini(str):
        def _replace(self, old_logprob):
            order.append((old_logprob, self))
            return self

    def update(state, batch):
        order.append((state, batch))
        return state + 1, {"loss": (0.0, 1.0)}

    class Count(int):
        params = None
        __add__ = lambda self, n: Count(int(self) + n)  # noqa: E731

    monkeypatch.setattr(reinforce, "make_update", lambda *_, **__: update)
    monkeypatch.setattr(reinforce, "make_logprob", lambda *_, **__: score)
    learn = make_learn(small("slca", train__mu=2, train__mini_batches=2), base, None, None, None)
    state, _ = learn(Count(0), [Mini("a"), Mini("b")], 0)
    assert order[:4] == [("old", "a"), ("old of a", "a"), ("old", "b"), ("old of b", "b")]
    assert order[4:] == [(0, "a"), (1, "b"), (2, "a"), (3, "b")] and state == 4


def test_nothing_of_a_step_stays_on_the_device(base):  # S9
    config = small("slca")
    params, optimizer, tasks = initial_params(config, base), optax.sgd(1.0), stream(config.tasks, "train", 0)
    step, state, live = make_step(config, base, optimizer), init_state(params, optimizer, jax.random.key(0)), []
    for number in range(3):
        state, _ = step(state, tasks.next(2), number)
        live.append(len(jax.live_arrays()))
    assert all(x.is_deleted() for x in jax.tree.leaves(params)) and live[1] == live[2]


def test_a_process_that_solved_nothing_tells_what_it_spent(config):
    """Calls for each solved rollout: one that solved its task with one call, two that did not with two."""
    record = apply_record(config)

    def described(names):
        found = rolled(config, names)
        rollouts = annotate(found, config)
        return describe(found, rollouts, record.credit(rollouts), config, record)

    assert described(["bad1", "bad2"])["cost/calls_per_solved"] == (2.0, 0.0)
    assert finalize(merge(described(["good1"]), described(["bad1", "bad2"])))["cost/calls_per_solved"] == 3.0


NIGHTLY = [
    pytest.param(name, marks=pytest.mark.nightly) for name in ("gear", "crest", "oar_g", "oar_p", "slca+self_conditioned")
]


@pytest.mark.parametrize("fresh", [True, False])
def test_groups_without_credit_get_fresh_prompts_or_the_same(base, monkeypatch, fresh):
    """Step 3, two rounds, two prompts: rounds ask for positions 12, 13 and 14, 15 of the spare tasks, those of the groups still dead."""
    asked, tasks = [], stream(small("slca").tasks, "train", 0).next(2)

    def spare(position):
        asked.append(position)
        return replace(tasks[position % 2], id=f"spare {position}")

    dead = iter([{0, 1}, {0, 1}, {1}])  # at first, after round 1, after round 2
    monkeypatch.setattr("slca.resampling.dead_groups", lambda *_: frozenset(next(dead)))
    outcome, _ = run(base, small("slca", rollout__resample=2), spare=spare if fresh else None, number=3)
    assert asked == ([12, 13, 14, 15] if fresh else [])
    found = [e.task.id for e in outcome.episodes]
    assert found == ["spare 14" if fresh else tasks[0].id] * 4 + [tasks[1].id] * 4
    assert outcome.values["engine/rows_inserted"] == 3 * 8  # what the rounds rolled out is counted and timed too
    assert outcome.values["time/rollout"] > outcome.values["time/reward"]


@pytest.mark.parametrize("name", ["self_conditioned", "rebel", *NIGHTLY])
def test_a_step_of_every_record_that_needs_more(base, name):
    outcome, _ = run(base, small(name))
    assert np.isfinite(list(outcome.values.values())).all()
    if name in ("gear", "crest"):
        assert outcome.values["probe/taught"] == 8.0
    if name == "rebel":
        assert outcome.values["train/term/rebel"] >= 0.0 and outcome.values["rollout/credit/leak"] >= 0.0


def test_a_term_that_is_0_at_the_old_policy_is_felt_with_one_mini_batch(base):
    """The second sweep, which the record asks for, sees what the first has pushed down (the KL in the reward gives every group spread)."""
    config = small("slca+llds", train__keep_reference=True, reward__kl_coef=0.5)
    outcome, moved = run(base, config, reference=True)
    assert (config.train.mu, config.train.mini_batches) == (2, 1)
    assert moved > 0 and outcome.values["train/term/llds"] > 0.0


def test_a_summary_that_weighs_nothing_has_no_kappa(base):
    """The log takes the weights of the reward: the total is then .5 of the tool reward, and GRPO's credit is the tool credit."""
    config = small("slca", reward__process_weight=0.5, reward__summary_weight=0.0)
    wrong = [calls(ToolCall("weather", {"city": "Rome"})), says("It is 17.4 degrees there, and I like it very much indeed.")]
    episodes = [good(), episode(task(), wrong, sample=1)]
    rollouts, record = annotate(episodes, config), apply_record(config)
    found = describe(episodes, rollouts, record.credit(rollouts), config, record)
    assert found["credit/kappa/tool"] == pytest.approx((1.0, 1.0)) and found["credit/kappa/summary"] == (0.0, 1.0)


def test_a_step_with_every_extra_of_slca(base):
    """Reference KL in the reward, dead groups rolled out again, gradient norms by kind, the leak test in the log."""
    config = small("slca", train__keep_reference=True, reward__kl_coef=0.5, rollout__resample=2, report__gradient_every=1)
    outcome, moved = run(base, config, reference=True)
    values = outcome.values
    assert moved > 0 and np.isfinite(list(values.values())).all()
    assert values["rollout/credit/leak"] == 0.0
    assert abs(values["train/gradient/cosine"]) <= 1.0 and values["train/gradient/tool"] >= 0.0
    assert values["resample/tried"] == values["resample/recovered"] + values["resample/dead"]
    assert [e.group for e in outcome.episodes] == [0] * 4 + [1] * 4
    np.testing.assert_array_equal(outcome.rollouts.group, [0] * 4 + [1] * 4)
    free = annotate(outcome.episodes, config).rewards
    paid = {name: free[name] - outcome.rollouts.rewards[name] for name in ("tool", "summary", "total", "solved")}
    assert (paid["total"] > 0).all() and (paid["solved"] == 0).all()  # k3 is never negative
    np.testing.assert_allclose(paid["tool"] + paid["summary"], paid["total"], rtol=1e-9)
    np.testing.assert_array_equal(paid["tool"] > 0, (outcome.rollouts.kind == TOOL).any(1))
