"""The sampler against a plain forward of the same rows. Numbers like P13 name cases that others got wrong."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.learn.sharding import make_mesh, settled, shardings
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.policy.weights import load
from slca.rollout import programs
from slca.rollout.sampler import BUDGET, CACHE_FULL, RUNNING, STOP, Sampler, row_keys
from tests.golden import recipe
from tests.policy.models import FAMILIES, params, row_logits
from tests.policy.test_config import QWEN25_05B

CONFIG, PARAMS = FAMILIES["qwen3"], params("qwen3")
SIZES = dict(slots=4, cache_length=32, prompt_buckets=(4, 8), suffix_buckets=(3, 6), decode_steps=5)
WARMTHS = np.resize([0.5, 0.8, 1.0], 7)
PROMPTS = [[5, 6, 7], [9], list(range(10, 18)), [5, 6, 7], [40, 2], [5, 6, 7], [33, 34, 35, 36]]


@pytest.fixture(scope="module")
def sampler():
    return Sampler(CONFIG, **SIZES)


def test_parameters_bound_to_a_device_compile_each_program_once():
    """As a checkpoint gives them: slots and prompts must not differ from the first call to the second."""
    pool, weights = Sampler(CONFIG, **SIZES), settled(PARAMS)
    for prompt in ([5], [5] * 8):
        caches, state = pool.prefill(weights, [prompt]), pool.init()
        for slot in range(2):
            state = pool.insert(state, caches, [0], [slot])
    assert pool.functions["insert"]._cache_size() == 2  # one a bucket


def keys(n, seed=0, step=0, turn=0):
    return row_keys(seed, step, np.arange(n), np.arange(n) % 3, np.full(n, turn))


def sample(sampler, prompts=PROMPTS, weights=PARAMS, temperature=0.7, stop_ids=(3, 11), new=16, row_key=None):
    row_key = keys(len(prompts)) if row_key is None else row_key
    return sampler.generate(weights, prompts, keys=row_key, max_new_tokens=new, temperature=temperature, stop_ids=stop_ids)


def trainer_logprob(config, weights, tokens, temperature):
    """Log-prob of tokens[1:] by a plain forward."""
    scores = row_logits(config, weights, tokens) / (temperature or 1.0)
    return np.asarray(jax.nn.log_softmax(scores))[np.arange(len(tokens) - 1), tokens[1:]]


def same(a, b):
    for left, right in zip(a, b):
        np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.parametrize("name", recipe.CONFIGS)
def test_greedy_rows_are_those_of_transformers(tmp_path, name):
    """P12, and P1, P3 / contract 10 for every family: 24 greedy tokens after 40; every log-prob at T = 0, 0.5, 0.8 and 1 in one
    batch is the trainer's, so no ratio leaves [0.9, 1.1]."""
    shapes, _, greedy = recipe.golden(name)
    config, weights = load(recipe.write_folder(tmp_path / "model", name, shapes))
    pool = Sampler(config, slots=5, cache_length=64, prompt_buckets=(40,), decode_steps=24)
    prompts, temperature = recipe.tokens()[[0, 1, 0, 1, 0]].tolist(), np.array([0.0, 0.0, 0.5, 0.8, 1.0])
    out = sample(pool, prompts, weights, temperature, stop_ids=(), new=24)
    np.testing.assert_array_equal(out.tokens[:2], greedy)
    for row, prompt in enumerate(prompts):
        expected = trainer_logprob(config, weights, np.array(prompt + out.tokens[row].tolist()), temperature[row])
        np.testing.assert_allclose(out.logprob[row], expected[39:], atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_blockwise_prefill_samples_the_same_rows(family):
    config = dataclasses.replace(FAMILIES[family], attention="blockwise")
    sizes = SIZES | dict(prompt_buckets=(8,))
    same(*(sample(Sampler(c, **sizes), weights=params(family)) for c in (FAMILIES[family], config)))


def test_generate_ends_rows_by_stop_or_length(sampler):
    out = sample(sampler)
    for row in range(len(PROMPTS)):
        tokens = out.tokens[row, : out.length[row]]
        assert out.stopped[row] == (tokens[-1] in (3, 11)) and not np.isin(tokens[:-1], (3, 11)).any()
        assert out.stopped[row] or out.length[row] == 16
        assert (out.tokens[row, out.length[row] :] == 0).all() and (out.logprob[row, out.length[row] :] == 0).all()
    assert 0 < out.stopped.sum() < len(PROMPTS)  # both kinds occur


def test_draws_follow_the_distribution(sampler):
    """The first token of 3,000 rows against the model's own probabilities (chi-square, 60 degrees of freedom). P2: the log-prob is
    over the whole vocabulary; nothing is truncated (validate refuses top-p and top-k)."""
    scores = jnp.broadcast_to(row_logits(CONFIG, PARAMS, [5, 6, 7])[-1:] / 0.8 * 0.8, (3000, 61))
    row_key = keys(3000, seed=5)
    token, logprob = jax.jit(programs.draw)(row_key, jnp.full(3000, 3), scores, jnp.full(3000, 0.8))
    probability = np.asarray(jax.nn.softmax(scores[0] / 0.8))
    expected = 3000 * probability
    counts = np.bincount(np.asarray(token), minlength=61)
    big = expected > 5
    chi2 = ((counts[big] - expected[big]) ** 2 / expected[big]).sum()
    assert chi2 < big.sum() + 4 * np.sqrt(2 * big.sum())
    np.testing.assert_allclose(logprob, np.log(probability)[np.asarray(token)], atol=1e-5)


@pytest.mark.parametrize("vocab", [61, 128, 300])
def test_draw_is_the_inverse_of_the_whole_cdf(vocab):
    """Blocks against one cumulated sum in float64, at three temperatures and T = 0; tokens of score -inf are never drawn."""
    rng = np.random.default_rng(vocab)
    scores = rng.normal(size=(2000, vocab)).astype(np.float32) * 4
    scores[rng.random(scores.shape) < 0.7] = -np.inf
    scores[:, 17] = 0.0  # one is always there
    temperature = np.tile(np.array([0.5, 0.8, 1.0, 0.0], np.float32), 500)
    row_key = keys(2000, seed=3)
    token, logprob = map(np.asarray, jax.jit(programs.draw)(row_key, jnp.full(2000, 9), jnp.asarray(scores), temperature))
    uniform = np.asarray(jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, 9)))(row_key), np.float64)
    scaled = scores.astype(np.float64) / np.where(temperature > 0, temperature, 1)[:, None]
    mass = np.exp(scaled - scaled.max(1, keepdims=True))
    cdf = np.cumsum(mass, 1) / mass.sum(1, keepdims=True)
    expected = np.where(temperature > 0, (cdf <= uniform[:, None]).sum(1), scores.argmax(1))
    distance = np.abs(cdf - uniform[:, None]).min(1)
    assert ((token == expected) | (distance < 1e-5)).all() and (token == expected).mean() > 0.99
    rows = np.arange(2000)
    assert np.isfinite(scores[rows, token]).all()
    np.testing.assert_allclose(logprob, np.log(mass[rows, token] / mass.sum(1)), atol=1e-5)


def test_a_temperature_too_small_to_divide_by_is_0():
    """Scores over it overflow: 2e-38 drew an id beyond the vocabulary, 1e-39 is 0 on devices that flush subnormal numbers."""
    small = [0.0, 1e-39, 2e-38, 1e-30, 9.99e-4]
    scores = np.random.default_rng(0).normal(0, 5, (len(small) + 1, 300)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), len(scores))
    temperature = jnp.asarray([*small, 1e-3], jnp.float32)
    token, logprob = map(np.asarray, jax.jit(programs.draw)(keys, jnp.full(len(scores), 5), jnp.asarray(scores), temperature))
    exact = scores.astype(np.float64)
    assert token.tolist() == exact.argmax(-1).tolist()
    plain = exact.max(-1) - np.log(np.exp(exact).sum(-1))
    np.testing.assert_allclose(logprob[:-1], plain[:-1], atol=1e-5)  # as at 0: log-probs at T = 1
    np.testing.assert_allclose(logprob[-1], 0, atol=1e-5)  # the training bound itself is a temperature: all mass on the best


def test_a_rows_draws_depend_on_its_key_and_position_only(sampler):
    """Contract 11, P13: row order, batch mates, slots, buckets, decode chunks and refilling change nothing, at T = 0.5, 0.8, 1."""
    expected = sample(sampler, temperature=WARMTHS)
    order = np.array([6, 2, 0, 5, 1, 4, 3])
    shuffled = sample(sampler, [PROMPTS[i] for i in order], row_key=keys(7)[order], temperature=WARMTHS[order])
    same([x[order] for x in expected], shuffled)
    other = Sampler(CONFIG, **SIZES | dict(slots=9, cache_length=40, prompt_buckets=(16,), decode_steps=3))
    same(expected, sample(other, temperature=WARMTHS))
    for row in (0, 4):
        alone = sample(sampler, [PROMPTS[row]], row_key=keys(7)[row : row + 1], temperature=WARMTHS[row])
        same([x[row : row + 1] for x in expected], alone)


def test_members_of_a_group_differ_and_repeats_agree(sampler):
    """P13: eight samples of one prompt are eight samples; the same (seed, step, prompt, sample, turn) is the same row."""
    group = row_keys(0, 0, np.zeros(8, int), np.arange(8), np.zeros(8, int))
    first = sample(sampler, [[5, 6, 7]] * 8, temperature=1.0, stop_ids=(), row_key=group)
    assert len({tuple(row) for row in first.tokens.tolist()}) == 8
    same(first, sample(sampler, [[5, 6, 7]] * 8, temperature=1.0, stop_ids=(), row_key=group))
    for change in (dict(seed=1), dict(step=1), dict(turn=1)):
        moved = sample(sampler, [[5, 6, 7]], temperature=1.0, stop_ids=(), row_key=keys(1, **change))
        assert (moved.tokens[0] != first.tokens[0]).any()


def test_stop_ids_and_temperature_are_never_stale(sampler):
    """P14, P19, contract 11: they are arguments of one compiled program; more than it holds is an error; none means no stop."""
    free = sample(sampler, [[9]], temperature=1.0, stop_ids=())
    assert free.length[0] == 16 and not free.stopped[0]
    before = sampler.compiles()
    third = int(free.tokens[0, 2])
    stopped = sample(sampler, [[9]], temperature=1.0, stop_ids=(third,))
    end = free.tokens[0].tolist().index(third) + 1
    assert stopped.length[0] == end and stopped.stopped[0]
    np.testing.assert_array_equal(stopped.tokens[0, :end], free.tokens[0, :end])
    assert (sample(sampler, [[9]], temperature=0.0, stop_ids=()).tokens != free.tokens).any()
    same(free, sample(sampler, [[9]], temperature=1.0, stop_ids=()))
    assert sampler.compiles() == before
    with pytest.raises(ValueError, match="17 stop ids, at most 16"):
        sample(sampler, [[9]], stop_ids=range(17))


def test_no_id_means_padding(sampler):
    """P16: id 0 fills unused places; as prompt token, sampled token and stop id it is a token like any other."""
    free = sample(sampler, [[0, 5, 0], [5]], temperature=1.0, stop_ids=())
    for row, prompt in enumerate(([0, 5, 0], [5])):
        tokens = np.array(prompt + free.tokens[row].tolist())
        np.testing.assert_allclose(
            free.logprob[row], trainer_logprob(CONFIG, PARAMS, tokens, 1.0)[len(prompt) - 1 :], atol=1e-4
        )
    swap = np.arange(61)
    swap[[0, 23]] = [23, 0]  # the same model with ids 0 and 23 exchanged, and draws by id: greedy rows must follow
    moved = PARAMS | {"embed": PARAMS["embed"][swap]}
    greedy = sample(sampler, [[0, 5, 0]], temperature=0.0, stop_ids=())
    np.testing.assert_array_equal(
        swap[greedy.tokens], sample(sampler, [[23, 5, 23]], moved, temperature=0.0, stop_ids=()).tokens
    )
    stop = int(greedy.tokens[0, 4])
    ours, theirs = (
        sample(sampler, [p], w, temperature=0.0, stop_ids=[s])
        for p, w, s in (([0, 5, 0], PARAMS, stop), ([23, 5, 23], moved, swap[stop]))
    )
    assert ours.length[0] == theirs.length[0] <= 5 and ours.stopped[0] and theirs.stopped[0]


def test_turns_keep_the_pending_token_invariant(sampler):
    """Contract 12 over turns: prefill, decode, append pieces of several lengths (one longer than the largest bucket), decode."""
    state = sampler.insert(sampler.init(), sampler.prefill(PARAMS, [[5, 6, 7], [9]]), [0, 1, 0], [2, 0, 3])
    rows = {0: [9], 2: [5, 6, 7], 3: [5, 6, 7]}
    logprob = {slot: [] for slot in rows}
    pieces = [{0: [8, 9, 10, 11], 3: list(range(20, 33))}, {2: [1], 0: [2, 3]}]
    for turn, budgets in enumerate(([5, 0, 3, 2], [2, 0, 1, 4], [3, 0, 2, 3])):
        state, tokens, lp, count, reason = sampler.decode(
            PARAMS, state, keys=keys(4, turn=turn), temperature=0.8, stop_ids=(), budgets=budgets
        )
        np.testing.assert_array_equal(count, budgets)
        np.testing.assert_array_equal(np.asarray(reason)[[0, 2, 3]], BUDGET)
        for slot, row in rows.items():
            row += np.asarray(tokens)[slot, : count[slot]].tolist()
            logprob[slot] += [(len(row) - count[slot] + i, x) for i, x in enumerate(np.asarray(lp)[slot, : count[slot]])]
            assert int(state.last[slot]) == row[-1] and int(state.length[slot]) == len(row) - 1
        if turn < 2:
            state = sampler.append(PARAMS, state, pieces[turn])
            for slot, ids in pieces[turn].items():
                rows[slot] += ids
                assert int(state.last[slot]) == ids[-1] and int(state.length[slot]) == len(rows[slot]) - 1
    for slot, row in rows.items():
        expected = trainer_logprob(CONFIG, PARAMS, np.array(row), 0.8)
        for position, value in logprob[slot]:
            assert abs(expected[position - 1] - value) < 1e-4


def test_few_of_many_rows_move_and_leave_the_others_alone():
    """More slots than one append takes, fewer live rows than slots: rows are gathered, worked on and put back."""
    pool = Sampler(CONFIG, **SIZES | dict(slots=20, decode_steps=4))
    assert {("append", (8, 3)), ("decode", (5, 4)), ("decode", (20, 4))} < set(pool.programs)
    state = pool.insert(pool.init(), pool.prefill(PARAMS, [[5, 6, 7], [9, 4]]), [i % 2 for i in range(20)], range(20))
    rows = {slot: [[5, 6, 7], [9, 4]][slot % 2] for slot in range(20)}

    def untouched(chosen, before, after):
        others = np.setdiff1d(np.arange(20), chosen)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a)[others], np.asarray(b)[others]), before, after)

    before, chosen = jax.device_get(state), [1, 4, 5, 7, 8, 11, 13, 16, 17, 18, 19]
    state = pool.append(PARAMS, state, {slot: [slot, slot + 1] for slot in chosen})
    untouched(chosen, before, state)
    rows |= {slot: [*rows[slot], slot, slot + 1] for slot in chosen}
    for chosen in ([0, 3, 11, 18, 19], list(range(20)), [7]):
        before, budgets = jax.device_get(state), np.zeros(20, int)
        budgets[chosen] = 4
        state, tokens, lp, count, reason = pool.decode(
            PARAMS, state, keys=keys(20), temperature=1.0, stop_ids=(), budgets=budgets
        )
        untouched(chosen, before, state)
        np.testing.assert_array_equal(count, budgets)
        np.testing.assert_array_equal(reason, np.where(budgets, BUDGET, RUNNING))
        for slot in chosen:
            row = rows[slot] + np.asarray(tokens)[slot].tolist()
            expected = trainer_logprob(CONFIG, PARAMS, np.array(row), 1.0)[len(rows[slot]) - 1 :]
            np.testing.assert_allclose(np.asarray(lp)[slot], expected, atol=1e-4)
            rows[slot] = row
    assert pool.compiles() <= len(pool.programs)


def test_reasons(sampler):
    """Budget 0 and a full cache end a row before its first token; idle rows stay as they were; `wanted` ends the round."""
    long = list(range(20, 28))
    state = sampler.insert(sampler.init(), sampler.prefill(PARAMS, [long]), [0] * 4, range(4))
    state = sampler.append(PARAMS, state, {0: [1] * 20, 1: [1] * 24})  # 27 and 31 of 32 in the cache
    call = dict(keys=keys(4), temperature=1.0, stop_ids=())
    state, _, _, count, reason = sampler.decode(PARAMS, state, budgets=[9, 9, 0, 9], active=[1, 1, 1, 0], **call)
    np.testing.assert_array_equal(count, [5, 1, 0, 0])
    np.testing.assert_array_equal(reason, [CACHE_FULL, CACHE_FULL, BUDGET, RUNNING])
    np.testing.assert_array_equal(state.length, [32, 32, 7, 7])
    state, _, _, count, reason = sampler.decode(PARAMS, state, budgets=[9, 9, 2, 9], wanted=3, **call)
    np.testing.assert_array_equal(count, [0, 0, 2, 2])  # two full rows and one budget make three
    np.testing.assert_array_equal(reason, [CACHE_FULL, CACHE_FULL, BUDGET, RUNNING])
    before = int(state.last[3])
    state, tokens, _, count, reason = sampler.decode(
        PARAMS, state, budgets=[0, 0, 0, 1], keys=keys(4), temperature=1.0, stop_ids=range(16)
    )
    assert (
        count[3] == 1 and reason[3] == (STOP if tokens[3, 0] < 16 else BUDGET) and int(state.last[3]) == tokens[3, 0] != before
    )


def test_programs_are_the_listed_ones(sampler):
    """Contract 15, S6: whatever was asked of this sampler by the tests above, nothing beyond the list was compiled."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        prompts = [rng.integers(0, 61, rng.integers(1, 9)).tolist() for _ in range(rng.integers(1, 12))]
        state = sampler.insert(sampler.init(), sampler.prefill(PARAMS, prompts), [0], [int(rng.integers(0, 4))])
        sampler.append(PARAMS, state, {int(slot): [1] * int(rng.integers(1, 9)) for slot in rng.permutation(4)[:2]})
        sample(sampler, prompts, new=int(rng.integers(1, 9)))
    assert sampler.compiles() == len(sampler.programs) == len(set(sampler.programs))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_p5_p6_padding_moves_no_position(dtype):
    """P5, P6: the cache of a prompt is the same in buckets of 8 and 24 and beside other prompts, also in bfloat16, where a position
    that counted padding would show."""
    config = dataclasses.replace(CONFIG, dtype=dtype)
    small, large = (Sampler(config, **SIZES | dict(prompt_buckets=(n,), cache_dtype=dtype)) for n in (8, 24))
    alone, beside = small.prefill(PARAMS, [PROMPTS[2]]), large.prefill(PARAMS, [[60] * 20, *PROMPTS[1:4]])
    for ours, theirs in zip(jax.tree.leaves(alone.chunks[0]), jax.tree.leaves(beside.chunks[beside.chunk[2]])):
        a, b = np.asarray(ours[0], np.float32), np.asarray(theirs[beside.row[2]], np.float32)
        np.testing.assert_allclose(a, b[tuple(map(slice, a.shape))], atol=1e-5 if dtype == "float32" else 3e-2)


def test_p18_no_dropout_anywhere():
    """P18: a checkpoint trained with dropout makes the same model, and that model takes no random numbers."""
    assert ModelConfig.from_hf({**QWEN25_05B, "attention_dropout": 0.1}) == ModelConfig.from_hf(QWEN25_05B)
    assert "rngs" not in inspect.signature(transformer.forward_cached).parameters
    np.testing.assert_array_equal(row_logits(CONFIG, PARAMS, [5, 6, 7]), row_logits(CONFIG, PARAMS, [5, 6, 7]))


def test_cache_dtype_is_the_one_asked_for():
    """P8; and bfloat16 caches cost little."""
    pool = Sampler(CONFIG, **SIZES | dict(cache_dtype="bfloat16"))
    assert {leaf.dtype for leaf in jax.tree.leaves(pool.init().cache)} == {jnp.dtype("bfloat16")}
    assert pool.nbytes() == sum(leaf.nbytes for leaf in jax.tree.leaves(pool.init().cache))
    out = sample(pool, [[5, 6, 7]], temperature=1.0)
    tokens = np.array([5, 6, 7, *out.tokens[0, : out.length[0]].tolist()])
    gap = np.abs(out.logprob[0, : out.length[0]] - trainer_logprob(CONFIG, PARAMS, tokens, 1.0)[2:])
    assert 0 < gap.max() < 0.05


@pytest.mark.parametrize(
    "spread",
    [
        dict(data=8, fsdp=1, tensor=1),
        dict(data=2, fsdp=2, tensor=2),
        pytest.param(dict(data=1, fsdp=1, tensor=1), marks=pytest.mark.nightly),
        dict(data=2, fsdp=1, tensor=1),
        pytest.param(dict(data=2, fsdp=1, tensor=2), marks=pytest.mark.nightly),
    ],
)
def test_a_mesh_changes_no_token(sampler, config, spread):
    """Contract 11 over 1, 2, 4 and 8 devices: slots over data and fsdp, KV heads over tensor, params sharded; nothing extra
    compiled."""
    config.mesh.update(spread)
    mesh = make_mesh(config.mesh, jax.devices()[: int(np.prod(list(spread.values())))])
    placed = jax.device_put(PARAMS, shardings(PARAMS, transformer.logical_axes(CONFIG), mesh))
    pool = Sampler(CONFIG, **SIZES | dict(slots=16), mesh=mesh)
    same(sample(sampler, temperature=WARMTHS), sample(pool, weights=placed, temperature=WARMTHS))
    state = pool.insert(pool.init(), pool.prefill(placed, [[5, 6, 7], [9]]), [0, 1, 1, 0], [6, 1, 7, 15])
    suffixes = {6: [1, 2, 3, 4], 1: [5], 7: [8, 9, 10, 11, 12, 13, 14]}  # two rows of one shard, one with two pieces
    state = pool.append(placed, state, suffixes)
    budgets = np.zeros(16, int)
    budgets[[6, 1, 7, 15]] = [5, 3, 4, 2]
    state, tokens, lp, count, _ = pool.decode(placed, state, keys=keys(16), temperature=1.0, stop_ids=(), budgets=budgets)
    np.testing.assert_array_equal(count, budgets)
    for slot, prompt in ((6, [5, 6, 7]), (1, [9]), (7, [9]), (15, [5, 6, 7])):
        row, n = prompt + suffixes.get(slot, []), budgets[slot]
        expected = trainer_logprob(CONFIG, PARAMS, np.array(row + np.asarray(tokens)[slot, :n].tolist()), 1.0)
        np.testing.assert_allclose(np.asarray(lp)[slot, :n], expected[len(row) - 1 :], atol=1e-4)
    assert pool.compiles() <= len(pool.programs)


def test_bad_input_is_refused_before_a_device_is_touched(sampler):
    with pytest.raises(ValueError, match=r"prompt 1 has 0 tokens; 1 to 8 fit"):
        sampler.prefill(PARAMS, [[1], []])
    with pytest.raises(ValueError, match="prompt 0 has 9 tokens"):
        sampler.prefill(PARAMS, [[1] * 9])
    prompts = sampler.prefill(PARAMS, [[1]])
    for source, slots in (([0, 0], [1, 1]), ([0], [1, 2]), ([0], [4])):
        with pytest.raises(ValueError, match="distinct, below 4"):
            sampler.insert(sampler.init(), prompts, source, slots)
    with pytest.raises(ValueError, match="cache_length 65 exceeds the model's max_length 64"):
        Sampler(CONFIG, cache_length=65)
    with pytest.raises(ValueError, match=r"suffix_buckets \(\) not empty"):
        Sampler(CONFIG, suffix_buckets=())
    assert Sampler(CONFIG, cache_length=32, prompt_buckets=(16, 40, 64)).prompt_buckets == (16, 32)


def test_of_long_prompts_and_long_rows_fewer_go_together(monkeypatch):
    """What one prefill computes, and what one append copies, is bounded."""
    monkeypatch.setattr("slca.rollout.sampler.PREFILL_TOKENS", 16)
    monkeypatch.setattr("slca.rollout.sampler.APPEND_TOKENS", 96)
    pool = Sampler(CONFIG, **SIZES | dict(slots=12, cache_length=32, prompt_buckets=(2, 8, 32)))
    assert [shape for name, shape in pool.programs if name == "prefill"] == [(1, 2), (8, 2), (1, 8), (2, 8), (1, 32)]
    assert {shape[0] for name, shape in pool.programs if name == "append"} == {3}
    same(sample(pool), sample(Sampler(CONFIG, **SIZES)))


def test_layers_for_decoding_are_split_over_tensor_alone(config):
    config.mesh.update({"data": 1, "fsdp": 4, "tensor": 2})
    mesh = make_mesh(config.mesh)
    pool = Sampler(CONFIG, **SIZES, mesh=mesh)
    layer = pool.prepare(jax.device_put(PARAMS, shardings(PARAMS, transformer.logical_axes(CONFIG), mesh))).layers[0]
    assert layer["gate"].sharding.spec == jax.P(None, "tensor") and layer["down"].sharding.spec == jax.P("tensor", None)


def test_the_functions_are_those_of_the_listed_programs(sampler):
    assert {name for name, _ in sampler.programs} | {"decode_masked"} == set(sampler.functions)


def test_rounds_with_few_rows_copy_small_caches_alone(monkeypatch):
    sizes = SIZES | dict(slots=16)
    assert [shape for name, shape in Sampler(CONFIG, **sizes).programs if name == "decode"] == [(4, 5), (16, 5)]
    monkeypatch.setattr("slca.rollout.sampler.THIN_TOKENS", 16 * 32 - 1)
    assert [shape for name, shape in Sampler(CONFIG, **sizes).programs if name == "decode"] == [(16, 5)]
