import numpy as np
import pytest

from slca.learn.batch import loss_weights, mini_batches, pack, pack_sft, padding_share, trained_tokens
from slca.report.behaviour import behaviour
from slca.types import ABSENT, ENV, POLICY, SUMMARY, TOOL, Segment

from .conftest import episode


def by_episode(batch):
    """(row, mask) of each episode of a host batch."""
    ids = np.asarray(batch.episode)
    return [(row, ids[row] == n) for row in range(len(ids)) for n in range(1, ids[row].max() + 1)]


def find(batch, tokens):
    """Row and positions of the episode with these tokens."""
    for row, mask in by_episode(batch):
        if np.array_equal(batch.tokens[row][mask], tokens):
            return row, mask
    raise AssertionError("episode not in the batch")


@pytest.mark.parametrize("packed", [True, False])
def test_every_token_keeps_its_own_labels(episodes, credit, config, packed):  # contract 6, M10, M11
    config.train.pack = packed
    (batch,) = pack(episodes, credit, config=config)
    for n, e in enumerate(episodes):
        if not e.scored:
            continue
        row, mask = find(batch, e.tokens)
        np.testing.assert_array_equal(batch.positions[row][mask], np.arange(len(e.tokens)))
        sampled = e.writer == POLICY
        np.testing.assert_array_equal(batch.segment[row][mask], np.where(sampled, e.turn + 1, 0))
        last = len(e.turns) - 1
        kind = np.where(sampled, np.where(e.turn == last, SUMMARY, TOOL), ABSENT)
        np.testing.assert_array_equal(batch.kind[row][mask], kind)
        np.testing.assert_allclose(batch.advantage[row][mask], np.where(sampled, credit[n][e.turn], 0), rtol=1e-6)
        np.testing.assert_array_equal(batch.loss_weight[row][mask] > 0, sampled)
        np.testing.assert_array_equal(batch.sampler_logprob[row][mask], np.where(sampled, e.logprob, np.nan))
    assert np.isnan(batch.old_logprob).all() and np.isnan(batch.ref_logprob).all()  # P17: missing is NaN, not 0


def test_permuting_rollouts_permutes_the_batch(episodes, credit, config):  # M10
    order = np.random.default_rng(0).permutation(len(episodes))
    (a,), (b,) = pack(episodes, credit, config=config), pack([episodes[i] for i in order], credit[order], config=config)
    for e in (e for e in episodes if e.scored):
        (i, left), (j, right) = find(a, e.tokens), find(b, e.tokens)
        np.testing.assert_array_equal(a.advantage[i][left], b.advantage[j][right])


def test_unscored_episodes_cost_nothing(episodes, credit, config):  # contracts 7, 13
    credit[5] = np.nan  # never read
    (batch,) = pack(episodes, credit, config=config)
    assert len(by_episode(batch)) == 7
    assert batch.loss_weight.sum() == pytest.approx(1, abs=1e-6)


def test_shapes_come_from_the_buckets(episodes, credit, config):
    (batch,) = pack(episodes, credit, config=config)
    assert batch.tokens.shape == (4, 40)  # 153 tokens, two rows a micro-batch
    (wide,) = pack(episodes, credit, config=config, data_size=4)
    assert wide.tokens.shape == (8, 40)
    config.train.pack = False
    (alone,) = pack(episodes, credit, config=config)
    assert alone.tokens.shape == (8, 40)
    assert all(x.dtype == (np.int32 if n < 5 else np.float32) for n, x in enumerate(batch[:10]))


def test_focus_scales_and_never_flips(episodes, credit, config):
    focus = [np.full(len(e.tokens) + 3, 0.5) for e in episodes]  # may be padded on the right
    (half,), (whole,) = pack(episodes, credit, focus, config), pack(episodes, credit, config=config)
    np.testing.assert_allclose(half.advantage, whole.advantage / 2, rtol=1e-6)
    focus[2][5] = -1
    with pytest.raises(ValueError, match="focus of episode 2 is negative"):
        pack(episodes, credit, focus, config)


def test_padding_share(episodes, credit, config):
    (batch,) = pack(episodes, credit, config=config)
    tokens = sum(len(e.tokens) for e in episodes if e.scored)
    assert padding_share(batch, 2) == (160 - tokens, 160)
    (wide,) = pack(episodes, credit, config=config, data_size=4)  # half the rows are empty, in one micro-batch
    assert padding_share(wide, 8) == (320 - tokens, 320)
    config.train.micro_rows = 1
    (lone,) = pack(episodes[:1], credit[:1], config=config)
    assert padding_share(lone, 1) == (22.0, 40.0)


def test_mini_batches_keep_groups_whole():
    parts = mini_batches([7, 7, 7, 2, 2, 5], 2)
    assert [p.tolist() for p in parts] == [[0, 1, 2, 3, 4], [5]]
    with pytest.raises(ValueError, match="needs as many groups, got 3"):
        mini_batches([7, 7, 2, 5], 4)


def test_divisors_are_per_mini_batch(episodes, credit, config):
    config.train.mini_batches = 2
    batches = pack(episodes, credit, config=config)
    assert [len(by_episode(b)) for b in batches] == [4, 3]
    for batch in batches:
        assert batch.loss_weight.sum() == pytest.approx(1, abs=1e-6)


def test_a_mini_batch_without_a_trained_token_is_empty(episodes, credit, config):  # M6
    for e in episodes[4:]:
        e.end = "dead"
    config.train.mini_batches = 2
    _, empty = pack(episodes, credit, config=config)
    assert empty.tokens.shape == (2, 40) and not empty.loss_weight.any() and not empty.episode.any()


def trained(lengths, advantage=1.0):
    """One row a length: [prompt 1] + `length` sampled tokens in segments of at most 4."""
    rows = []
    for n, length in enumerate(lengths):
        e = episode(1, [(length, 0)], sample=n)
        parts = [Segment(SUMMARY, 1 + s, min(1 + s + 4, 1 + length), 0) for s in range(0, length, 4)]
        rows.append(trained_tokens(e, parts, np.full(len(parts), advantage)))
    return rows


@pytest.mark.parametrize(
    "mode, expected",  # two rows with 2 and 6 tokens; the second has segments of 4 and 2
    [
        ("token_mean", [[1 / 8] * 2, [1 / 8] * 6]),
        ("seq_mean_token_mean", [[1 / 4] * 2, [1 / 12] * 6]),
        ("seq_mean_token_sum", [[1 / 2] * 2, [1 / 2] * 6]),
        ("constant", [[1 / 20] * 2, [1 / 20] * 6]),
        ("per_segment_mean", [[1 / 6] * 2, [1 / 12] * 4 + [1 / 6] * 2]),
    ],
)
def test_aggregations_by_hand(config, mode, expected):  # M20
    config.loss.update(aggregation=mode, constant=10)
    for row, values in zip(loss_weights(trained([2, 6]), config.loss, 99), expected, strict=True):
        np.testing.assert_allclose(row, [0, *values])


def test_constant_defaults_to_the_response_limit(config):
    config.loss.aggregation = "constant"
    assert loss_weights(trained([2]), config.loss, 50)[0].tolist() == [0, 1 / 50, 1 / 50]


def test_truncated_rows_leave_numerator_and_denominator(config):  # M3: 25 kept of 30
    rows = [episode(1, [(5, 0)], sample=n) for n in range(6)]
    rows[3].end = "sim_failed"
    (batch,) = pack(rows, np.ones((6, 1)), config=config)
    assert batch.loss_weight[batch.loss_weight > 0] == pytest.approx(np.full(25, 1 / 25))


@pytest.mark.parametrize("end", ["truncated", "context_full"])
def test_overlong_filtering_leaves_cut_rows_out(config, end):  # M4: out of the loss alone, lengths are those sampled
    rows = [episode(1, [(5, 0)], sample=n, end=end if n == 3 else "answered") for n in range(6)]
    assert (pack(rows, np.ones((6, 1)), config=config)[0].loss_weight > 0).sum() == 30
    measured = behaviour(rows)
    config.loss.mask_truncated = True
    (batch,) = pack(rows, np.ones((6, 1)), config=config)
    assert batch.loss_weight[batch.loss_weight > 0] == pytest.approx(np.full(25, 1 / 25))
    assert behaviour(rows) == measured and measured["length/policy"] == (30.0, 6.0)


def test_active_denominator_counts_tokens_with_an_advantage(config):
    config.loss.denominator = "active"
    live, still = trained([2]), trained([6], advantage=0.0)
    weights = loss_weights(live + still, config.loss, 99)
    assert weights[0].tolist() == [0, 0.5, 0.5] and not weights[1].any()


def test_all_processes_share_the_divisor(config):  # M8
    def both(counts):  # another process holds the same again, plus one row
        return np.stack([counts, counts + np.array([6, 1, 2])])

    assert loss_weights(trained([2]), config.loss, 99, both)[0][1] == pytest.approx(1 / (2 + 2 + 6))


def test_one_token_is_finite(config):  # M22
    for mode in ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant", "per_segment_mean"):
        config.loss.aggregation = mode
        assert np.isfinite(loss_weights(trained([1]), config.loss, 99)[0]).all()


def test_dropping_dead_groups_equals_leaving_them_out(episodes, credit, config):  # M16
    credit[:4] = 0
    (kept,) = pack(episodes, credit, config=config)
    config.credit.dead_groups = "drop"
    (dropped,) = pack(episodes, credit, config=config)
    (alone,) = pack(episodes[4:], credit[4:], config=config)
    for a, b in zip(dropped[:10], alone[:10], strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(by_episode(kept)) == 7 and len(by_episode(dropped)) == 3


@pytest.mark.parametrize("packed", [True, False])
def test_whole_groups_share_a_micro_batch(config, packed):
    config.train.update(pack=packed, micro_rows=4)
    rows = [episode(3, [(int(n), 0)], group=g, sample=k) for g, sizes in ((9, (30, 5, 5, 8)), (2, (20, 20, 7)), (5, (33, 33)))
            for k, n in enumerate(sizes)]  # fmt: skip
    (batch,) = pack(rows, np.ones((len(rows), 1)), config=config, groups=True)
    seen = {}
    count = len(batch.tokens) // 4
    for n, e in enumerate(rows):
        row, mask = find(batch, e.tokens)
        seen.setdefault(e.group, set()).add(row % count)  # micro-batch m holds the rows m, m + count, ...
        assert set(batch.group[row][mask].tolist()) == {e.group + 1}, n
    assert all(len(micro) == 1 for micro in seen.values()) and set(batch.group[batch.episode == 0].tolist()) <= {0}
    assert pack(rows, np.ones((len(rows), 1)), config=config)[0].group is None


def test_a_group_may_take_longer_rows_than_its_episodes_need(config):
    """8 episodes of 30 tokens in 4 rows: of 40 tokens they hold 4, of 80 all 8."""
    config.train.update(micro_rows=4, row_lengths=(40, 80))
    rows = [episode(3, [(27, 0)], group=0, sample=k) for k in range(8)]
    (batch,) = pack(rows, np.ones((8, 1)), config=config, groups=True)
    assert batch.tokens.shape == (4, 80)
    (short,) = pack(rows[:4], np.ones((4, 1)), config=config, groups=True)
    assert short.tokens.shape == (4, 40)
    config.train.pack = False  # a row each, whatever its length
    with pytest.raises(ValueError, match="do not fit one micro-batch of 4 rows of 40"):
        pack(rows, np.ones((8, 1)), config=config, groups=True)


@pytest.mark.parametrize("theirs, shape", [((-1, 4), (4, 80)), ((8, 4), (8, 40)), ((-1, -1), None)])
def test_processes_agree_on_the_rows_of_whole_groups(config, theirs, shape):
    """theirs: rows of 40 and of 80 tokens that the other process needs, -1 = a group of its does not fit there."""
    config.train.update(micro_rows=4, row_lengths=(40, 80))
    rows = [episode(3, [(27, 0)], group=0, sample=k) for k in range(4)]

    def gather(mine):
        other = np.asarray(theirs) if len(mine) == 2 else mine  # the row counts; else sums and lengths, here the same ones
        return np.stack([mine, other])

    if shape is None:
        with pytest.raises(ValueError, match="another process"):
            pack(rows, np.ones((4, 1)), config=config, groups=True, gather=gather)
    else:
        (batch,) = pack(rows, np.ones((4, 1)), config=config, groups=True, gather=gather)
        assert batch.tokens.shape == shape


def test_a_group_that_fits_no_micro_batch_is_refused(episodes, credit, config):
    config.train.update(micro_rows=1)
    with pytest.raises(ValueError, match=r"group 0: its 4 episodes \(82 tokens\) do not fit one micro-batch of 1 rows of 40"):
        pack(episodes, credit, config=config, groups=True)


def test_stop_token_is_trained_and_environment_is_not():  # contract 4, M1
    e = episode(3, [(4, 6), (2, 0)])
    t = trained_tokens(e, [Segment(TOOL, 3, 7, 0), Segment(SUMMARY, 13, 15, 1)], np.array([1.0, -2.0]))
    assert t.learnable.tolist() == (e.writer == POLICY).tolist() and not t.learnable[e.writer == ENV].any()
    assert t.advantage[6] == 1.0 and t.advantage[14] == -2.0 and not t.advantage[7:13].any()


def test_bad_credit_is_refused(episodes, credit, config):
    with pytest.raises(ValueError, match=r"credit has shape \(7, 4\), expected \[8, segments\]"):
        pack(episodes, credit[:7], config=config)
    with pytest.raises(ValueError, match="episode 2 has 3 segments, credit has room for 2"):
        pack(episodes, credit[:, :2], config=config)
    credit[2, 1] = np.nan
    with pytest.raises(ValueError, match="credit of episode 2, segment 1 is nan"):
        pack(episodes, credit, config=config)


def test_a_sampled_first_token_is_refused(config):
    e = episode(0, [(4, 0)])
    with pytest.raises(ValueError, match="episode 0 starts with a sampled token"):
        pack([e], np.ones((1, 1)), config=config)


def test_pad_id_means_nothing(episodes, credit, config):  # P16, contract 3: token 0 fills padding and occurs in rows
    episodes[0].tokens[:] = 0
    (batch,) = pack(episodes, credit, config=config)
    row, mask = find(batch, episodes[0].tokens)
    assert mask.sum() == 18 and (batch.loss_weight[row][mask] > 0).sum() == 9


def test_pack_sft_learns_each_weighted_token_once(config):  # S5: the tail batch has the same shape
    config.sft.update(batch_rows=4, row_length=40)
    rng = np.random.default_rng(0)
    examples = [(rng.integers(1, 48, n), np.r_[0, (rng.random(n - 1) < 0.5)]) for n in rng.integers(5, 40, 30)]
    batches = pack_sft(examples, config, seed=3)
    assert {b.tokens.shape for b in batches} == {(4, 40)} and len(batches) > 1
    seen = []
    for batch in batches:
        assert batch.loss_weight.sum() == pytest.approx(1, abs=1e-5)
        seen += [(tuple(batch.tokens[r][m]), tuple(batch.loss_weight[r][m] > 0)) for r, m in by_episode(batch)]
    assert sorted(seen) == sorted((tuple(t), tuple(w > 0)) for t, w in examples)
    again = pack_sft(examples, config, seed=3)
    np.testing.assert_array_equal(batches[0].tokens, again[0].tokens)


def test_pack_sft_refuses_a_learnt_first_token(config):
    with pytest.raises(ValueError, match="example 0"):
        pack_sft([(np.arange(3), np.ones(3))], config)


def test_of_similar_row_lengths_the_one_with_the_least_padding(config):
    """Nine episodes of 20 tokens: rows of 24 hold one each (9 x 24 = 216 tokens), rows of 40 two (5 x 40 = 200). Rows of 64 would
    hold three (192), but are more than twice as long."""
    config.train.update(micro_rows=1, row_lengths=(24, 40, 64))
    nine = [episode(4, [(16, 0)], group=n) for n in range(9)]
    (batch,) = pack(nine, np.ones((9, 1)), config=config)
    assert batch.tokens.shape == (8, 40) and padding_share(batch, 1) == (20.0, 200.0)
    config.train.micro_rows = 4  # whole micro-batches count: 12 x 24 = 288, 8 x 40 = 320
    (batch,) = pack(nine, np.ones((9, 1)), config=config)
    assert batch.tokens.shape == (16, 24) and padding_share(batch, 4) == (108.0, 288.0)
    config.train.update(micro_rows=1, pack=False)  # one a row: the shortest
    assert pack(nine, np.ones((9, 1)), config=config)[0].tokens.shape == (16, 24)
