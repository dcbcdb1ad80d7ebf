"""Prompts that a group stores once: what lies where, and the same numbers as with every rollout whole."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from slca.learn.batch import pack, padding_share
from slca.learn.forward import policy_forward
from slca.learn.loss import policy_loss
from slca.learn.pieces import common_prefix, shared_layout
from slca.learn.probe import make_logprob
from slca.learn.shapes import batch_shapes, empty, widened
from slca.learn.sharding import put_batch, row_shards, shardings
from slca.learn.update import accumulate, make_score
from slca.types import POLICY
from tests.learn.conftest import Toy, two_groups
from tests.learn.test_update import meshed


def with_one_prompt(episodes):
    """The prompt tokens of every group are those of its first rollout."""
    prompts = {e.group: e.tokens[: int(np.argmax(e.writer == POLICY))] for e in reversed(episodes)}
    return [replace(e, tokens=np.concatenate([prompts[e.group], e.tokens[len(prompts[e.group]) :]])) for e in episodes]


@pytest.fixture
def episodes():
    return with_one_prompt(two_groups())


def test_what_a_group_has_in_common_ends_before_the_last_prompt_token():
    """By hand: group 0 shares [7 8 9] of prompts of 4; the prompts of group 1 part after one token; group 2 is alone; group 3's
    prompt of one token leaves nothing."""
    tokens = [[7, 8, 9, 5, 1], [7, 8, 9, 5, 2, 3], [7, 6, 1, 1], [7, 5, 1, 1], [1, 2, 3], [4, 1], [4, 2]]
    first = [4, 4, 3, 3, 2, 1, 1]
    found = common_prefix([np.array(t) for t in tokens], first, [0, 0, 1, 1, 2, 3, 3])
    np.testing.assert_array_equal(found, [3, 3, 1, 1, 0, 0, 0])


def test_rows_by_hand():
    """Rows of 10; group 0: 3 shared of 6, 5, 5 tokens; group 1: nothing shared, 4 tokens.

    The largest group first, its longest rollout first: prompt 3 + 3 and 2 + 2 fill row 0; 4 tokens of group 1 open row 1.
    """
    place, pieces = shared_layout([6, 5, 5, 4], [3, 3, 3, 0], [0, 0, 0, 1], 10)
    np.testing.assert_array_equal(pieces.episode, [0, 0, 1, 2, 3])
    np.testing.assert_array_equal(pieces.start, [0, 3, 3, 3, 0])
    np.testing.assert_array_equal(pieces.stop, [3, 6, 5, 5, 4])
    np.testing.assert_array_equal(pieces.prompt, [0, 0, 0, 0, 4])
    np.testing.assert_array_equal(place.row, [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(place.start, [0, 3, 6, 8, 0])
    assert place.rows == 2


def test_a_row_that_runs_full_takes_the_prompt_again():
    place, pieces = shared_layout([6, 6, 6], [3, 3, 3], [0, 0, 0], 9)
    np.testing.assert_array_equal(place.row, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(pieces.prompt, [0, 0, 0, 3, 3])
    with pytest.raises(ValueError, match="episode 1 has 10 tokens, a packed row holds 9"):
        shared_layout([6, 10], [3, 3], [0, 0], 9)


def test_no_token_is_lost_or_doubled(config, episodes, credit):
    """Every trained token lies once in the batch, with its own labels and position, behind the prompt it was sampled from."""
    config.train.update(share_prompts=True)
    (batch,) = pack(episodes, credit, None, config)
    config.train.update(share_prompts=False)
    (whole,) = pack(episodes, credit, None, config)
    seen = []
    for row, t in np.argwhere(batch.loss_weight > 0):
        own = np.flatnonzero(batch.episode[row] == batch.episode[row, t])
        before = np.flatnonzero(batch.episode[row] == batch.prefix[row, t])
        path = np.concatenate([before[before < own[0]], own[own <= t]])
        np.testing.assert_array_equal(batch.positions[row, path], np.arange(len(path)))
        seen.append((*batch.tokens[row, path].tolist(), float(batch.advantage[row, t])))
    kept = [n for n, e in enumerate(episodes) if e.scored]
    expected = [
        (*episodes[n].tokens[: t + 1].tolist(), float(np.float32(credit[n][episodes[n].turn[t]])))
        for n in kept for t in np.flatnonzero(episodes[n].writer == POLICY)
    ]  # fmt: skip
    assert sorted(seen) == sorted(expected) and len(seen) == int((whole.loss_weight > 0).sum())


def test_it_takes_fewer_tokens(config, episodes, credit):
    """Real tokens: 3 and 5 prompt tokens stand once a row instead of once a rollout."""
    counts = {}
    for shares in (False, True):
        config.train.update(share_prompts=shares, row_lengths=(200,))
        (batch,) = pack(episodes, credit, None, config)
        counts[shares] = int((batch.episode > 0).sum())
        assert (batch.prefix is None) is not shares and padding_share(batch, 2)[1] > 0
    assert counts[False] - counts[True] == 3 * 3 + 2 * 5  # four rollouts of prompt 4, three scored ones of prompt 6


def gradient(config, toy, given, mesh=None):
    """(f32 gradient, metrics) of the whole mini-batch."""
    made, *forward = meshed(config, mesh, toy)
    (batch,) = pack(*given, None, config, data_size=row_shards(made))
    rows = config.train.micro_rows * row_shards(made)
    score = make_score(*forward, config, made, 1.0)
    at = None if made is None else shardings(toy.params(), toy.axes, made)

    @jax.jit
    def compute(params, batch):
        return accumulate(score, lambda lp, b, h: policy_loss(lp, b, config.loss, h), params, batch, rows, made, at)

    return jax.device_get(compute(toy.params(), batch if made is None else put_batch(batch, made)))


@pytest.fixture(scope="module")
def whole():
    """family -> gradient and metrics without sharing, made once."""
    return {}


@pytest.mark.parametrize(
    ("family", "implementation", "mesh"),
    [
        ("qwen3", "xla", None),
        ("qwen3", "blockwise", None),
        ("gemma3_text", "xla", None),  # layers that see 5 tokens: distances are those of the positions
        ("gemma3_text", "blockwise", None),
        ("qwen3", "auto", (2, 2, 2)),
    ],
)
def test_gradients_and_metrics_are_those_of_whole_rollouts(
    config, episodes, credit, whole, family, implementation, mesh, monkeypatch
):
    monkeypatch.setattr("slca.policy.attention.BLOCK", 16)
    sliding = dict(sliding_window=5, global_layers=(False, True), local_rope_theta=100.0) if family == "gemma3_text" else {}
    toy = Toy(family=family, attention=implementation, **sliding)
    config.train.update(micro_rows=1)
    if family not in whole:  # rollouts in rows of their own pieces, dense attention, one device
        whole[family] = gradient(config, Toy(family=family, attention="xla", **sliding), (episodes, credit))
    config.train.update(share_prompts=True)
    found = {True: gradient(config, toy, (episodes, credit), mesh), False: whole[family]}
    for own, other in zip(jax.tree.leaves(found[True][0]), jax.tree.leaves(found[False][0]), strict=True):
        assert np.abs(own - other).max() < 1e-5 * np.abs(other).max()
    assert abs(found[True][1]["loss"][0] - found[False][1]["loss"][0]) < 1e-6
    for name, (value, weight) in found[False][1].items():
        if name == "loss":
            continue  # its weight counts micro-batches
        np.testing.assert_allclose(found[True][1][name], (value, weight), rtol=1e-5, atol=1e-6, err_msg=name)


def test_logprobs_are_those_of_one_plain_forward(config, episodes, credit, toy):
    """Contract 10 in float64: of every sampled token, over the whole rollout alone in its row."""
    config.train.update(share_prompts=True, row_lengths=(80,))
    episodes = episodes[:4]
    (batch,) = pack(episodes, credit[:4], None, config)
    got = np.asarray(make_logprob(*policy_forward(toy.config), config)(toy.params(), batch))[batch.loss_weight > 0]
    expected = np.concatenate([toy.reference_logprob(toy.params(), e.tokens)[e.writer == POLICY] for e in episodes if e.scored])
    np.testing.assert_allclose(np.sort(got), np.sort(expected), atol=2e-5)


def test_splash_refuses_shared_prompts(config, episodes, credit):
    config.train.update(share_prompts=True)
    toy = Toy(attention="splash")
    (batch,) = pack(episodes, credit, None, config)
    with pytest.raises(ValueError, match=r"splash.*knows no shared prefix.*train\.share_prompts=False"):
        make_score(*policy_forward(toy.config), config, None, 1.0)(toy.params(), batch)


def test_groups_that_must_stay_together_share_nothing(config, episodes, credit):
    config.train.update(share_prompts=True, micro_rows=4, row_lengths=(80,))
    (batch,) = pack(episodes, credit, None, config, groups=True)
    assert batch.prefix is None and batch.group is not None


def test_one_program_a_row_length(config, episodes, credit):
    """A mini-batch without a shared prompt has the field too, and empty rows behind the own change nothing but their number."""
    config.train.update(share_prompts=True, row_lengths=(80,))
    config.rollout.update(group=4, max_prompt_tokens=10, max_response_tokens=70)
    (batch,) = pack(episodes[:1], credit[:1], None, config)
    np.testing.assert_array_equal(batch.prefix, batch.episode)
    shapes = batch_shapes(config, 2)
    wide = widened(pack(episodes, credit, None, config)[0], shapes, 2)
    blank = empty(shapes[80], 80, shared=True)
    assert [None if x is None else (x.shape, x.dtype) for x in wide] == [
        None if x is None else (x.shape, x.dtype) for x in blank
    ]
