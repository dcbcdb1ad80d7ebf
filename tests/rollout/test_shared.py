"""Shared prompts: what a pool of places samples is what a pool of whole rows samples.

Tokens are compared as such: both pools do the same float32 sums in another order, so scores differ by about 1e-6 and a draw could
differ only where its uniform number falls that close to a step of the CDF. With the keys of these tests none does.
"""

import jax
import numpy as np
import pytest

from slca.learn.sharding import make_mesh, shardings
from slca.policy import transformer
from slca.rollout.sampler import BUDGET, CACHE_FULL, RUNNING, Sampler, row_keys
from tests.policy.models import FAMILIES, params, row_logits

CONFIG, PARAMS = FAMILIES["qwen3"], params("qwen3")
WHOLE = dict(slots=5, cache_length=40, prompt_buckets=(4, 8), suffix_buckets=(3, 6), decode_steps=5)
SHARED = WHOLE | dict(slots=6, shared_slots=2, own_length=24)
# Groups of 5, 4, 3 and 1 of prompts of 3, 1 (nothing lies in the place), 8 (a full one) and 2 tokens.
PROMPTS = [[5, 6, 7]] * 5 + [[9]] * 4 + [list(range(10, 18))] * 3 + [[40, 2]]
WARMTHS = np.resize([0.0, 0.5, 0.8, 1.0], len(PROMPTS))


@pytest.fixture(scope="module")
def shared():
    return Sampler(CONFIG, **SHARED)


@pytest.fixture(scope="module")
def expected():
    return {family: sample(Sampler(FAMILIES[family], **WHOLE), weights=params(family)) for family in ("qwen3", "gemma3")}


def keys(n, turn=0):
    return row_keys(0, 0, np.arange(n), np.arange(n) % 3, np.full(n, turn))


def sample(sampler, order=None, weights=PARAMS, new=16, **options):
    order = np.arange(len(PROMPTS)) if order is None else np.asarray(order)
    options = dict(temperature=WARMTHS[order], stop_ids=(3, 11)) | options
    return sampler.generate(weights, [PROMPTS[i] for i in order], keys=keys(len(PROMPTS))[order], max_new_tokens=new, **options)


def same(a, b):
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_allclose(a.logprob, b.logprob, atol=1e-5)
    np.testing.assert_array_equal(a.stopped, b.stopped)


def plain_logprob(tokens, temperature, family="qwen3"):
    """Log-prob of tokens[1:] by a plain forward of the row; at T = 0 that of T = 1."""
    scores = row_logits(FAMILIES[family], params(family), tokens) / (temperature or 1.0)
    return np.asarray(jax.nn.log_softmax(scores))[np.arange(len(tokens) - 1), tokens[1:]]


@pytest.mark.parametrize(
    "sizes",
    [
        dict(),
        dict(slots=1, shared_slots=1, decode_steps=3),
        dict(slots=6, shared_slots=3, prompt_buckets=(8,)),
        dict(slots=16, shared_slots=4, decode_steps=7),  # thin rounds decode one place of the four
        pytest.param(dict(slots=16, shared_slots=16), marks=pytest.mark.nightly),
    ],
)
def test_shared_rows_are_those_of_whole_rows(expected, sizes):
    """Contract 11: over widths, groups that do not fill their place, refilling, buckets and rounds; nothing unlisted is compiled."""
    pool = Sampler(CONFIG, **SHARED | sizes)
    same(sample(pool), expected["qwen3"])
    assert pool.compiles() <= len(pool.programs) == len(set(pool.programs))
    assert {name for name, _ in pool.programs} | {"decode_masked", "spread"} == set(pool.functions)


def test_rows_in_any_order(shared, expected):
    order = np.random.default_rng(0).permutation(len(PROMPTS))
    got = sample(shared, order)
    for ours, theirs in zip(got, expected["qwen3"]):
        np.testing.assert_allclose(ours, theirs[order], atol=1e-5)


def test_a_sliding_window_crosses_the_border(expected):
    """Gemma's window of 5 over prompts of up to 8 tokens."""
    pool, weights = Sampler(FAMILIES["gemma3"], **SHARED), params("gemma3")
    got = sample(pool, weights=weights)
    same(got, expected["gemma3"])
    for i in (0, 7, 11):
        row, n = np.array(PROMPTS[i] + got.tokens[i].tolist()), len(PROMPTS[i])
        plain = plain_logprob(row, WARMTHS[i], "gemma3")[n - 1 :]
        np.testing.assert_allclose(got.logprob[i, : got.length[i]], plain[: got.length[i]], atol=1e-4)


def test_every_logprob_is_that_of_one_plain_forward(shared):
    """Contract 12: at T = 0, 0.5, 0.8 and 1."""
    got = sample(shared, stop_ids=())
    for i, prompt in enumerate(PROMPTS):
        row = np.array(prompt + got.tokens[i].tolist())
        np.testing.assert_allclose(got.logprob[i], plain_logprob(row, WARMTHS[i])[len(prompt) - 1 :], atol=1e-4)


def play_turns(pool, weights, slots):
    """Three turns with pieces between them (one longer than the largest bucket), rows of two prompts in `slots`; contract 12."""
    first, second = [5, 6, 7], list(range(10, 18))
    used = slots[0] + slots[1]
    rows = {slot: list(prompt) for prompt, mine in zip((first, second), slots) for slot in mine}
    state = pool.insert(pool.init(), pool.prefill(weights, [first, second]), [slot in slots[1] for slot in used], used)
    found = {slot: [] for slot in rows}
    pieces = [{used[0]: [8, 9, 10, 11], used[1]: list(range(20, 30))}, {used[2]: [1], used[0]: [2, 3]}]
    for turn in range(3):
        budgets = np.zeros(pool.slots, int)
        budgets[used] = 1 + (np.arange(len(used)) + turn) % 3
        row_key = keys(pool.slots, turn)
        state, tokens, lp, count, reason = pool.decode(
            weights, state, keys=row_key, temperature=0.8, stop_ids=(), budgets=budgets
        )
        np.testing.assert_array_equal(count, budgets)
        np.testing.assert_array_equal(np.asarray(reason)[used], BUDGET)
        for slot, row in rows.items():
            found[slot] += [(len(row) + i, x) for i, x in enumerate(np.asarray(lp)[slot, : count[slot]])]
            row += np.asarray(tokens)[slot, : count[slot]].tolist()
        if turn < 2:
            state = pool.append(weights, state, pieces[turn])
            for slot, ids in pieces[turn].items():
                rows[slot] += ids
        for slot, row in rows.items():
            assert int(state.last[slot]) == row[-1] and int(state.length[slot]) == len(row) - 1
    for slot, row in rows.items():
        plain = plain_logprob(np.array(row), 0.8)
        for position, value in found[slot]:
            assert abs(plain[position - 1] - value) < 1e-4
    assert pool.compiles() <= len(pool.programs)


def test_turns_append_to_what_is_a_rows_own(shared):
    play_turns(shared, PARAMS, ([0, 1], [4]))


def test_as_many_appended_rows_as_places_are_not_all_places():
    pool = Sampler(CONFIG, **SHARED | dict(slots=16))
    assert pool.places == 8 and ("append", (8, 3)) in pool.programs
    play_turns(pool, PARAMS, ([6, 7], [1]))


def test_few_places_of_many_move_and_leave_the_others_alone():
    """Sixteen slots: an append takes eight rows with copies of their prompts, a thin round the one place that is live."""
    pool = Sampler(CONFIG, **SHARED | dict(slots=16, shared_slots=4))
    assert {("append", (8, 3)), ("decode", (4, 5)), ("decode", (16, 5)), ("start", (16,))} < set(pool.programs)
    play_turns(pool, PARAMS, ([8, 11], [5]))
    state = pool.insert(pool.init(), pool.prefill(PARAMS, [[5, 6, 7], [9, 4]]), [i // 4 % 2 for i in range(16)], range(16))
    before = jax.device_get(state)
    assert pool.compacts([4, 7]) and not pool.compacts([3, 4])  # one place, two places
    budgets = np.zeros(16, int)
    budgets[[4, 7]] = 3
    state, tokens, lp, count, reason = pool.decode(PARAMS, state, keys=keys(16), temperature=1.0, stop_ids=(), budgets=budgets)
    np.testing.assert_array_equal(count, budgets)
    np.testing.assert_array_equal(reason, np.where(budgets, BUDGET, RUNNING))
    others = np.setdiff1d(np.arange(16), [4, 7])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[others], np.asarray(b)[others]), before[:3], tuple(state)[:3])
    jax.tree.map(np.testing.assert_array_equal, before.prompts, state.prompts)
    for slot in (4, 7):
        row = [9, 4, *np.asarray(tokens)[slot, :3].tolist()]
        np.testing.assert_allclose(np.asarray(lp)[slot, :3], plain_logprob(np.array(row), 1.0)[1:], atol=1e-4)


@pytest.mark.parametrize(
    "spread",
    [
        dict(data=8, fsdp=1, tensor=1),
        dict(data=2, fsdp=2, tensor=2),
        pytest.param(dict(data=1, fsdp=1, tensor=1), marks=pytest.mark.nightly),
        pytest.param(dict(data=2, fsdp=1, tensor=1), marks=pytest.mark.nightly),
    ],
)
def test_a_mesh_changes_no_token(expected, config, spread):
    """Contract 11 over 1, 2 and 8 devices: whole places on each shard."""
    config.mesh.update(spread)
    mesh = make_mesh(config.mesh, jax.devices()[: int(np.prod(list(spread.values())))])
    placed = jax.device_put(PARAMS, shardings(PARAMS, transformer.logical_axes(CONFIG), mesh))
    pool = Sampler(CONFIG, **SHARED | dict(slots=16), mesh=mesh)
    same(sample(pool, weights=placed), expected["qwen3"])
    play_turns(pool, placed, ([6, 7], [1]))
    if pool.places > pool.shards:  # another place of the same shard gets the prompt
        own = pool.places // pool.shards
        state = pool.insert(pool.init(), pool.prefill(placed, [[5, 6, 7], [9, 4]]), [0, 1], [0, 15])
        state = pool.spread(state, [(0, 1), (pool.places - 1, pool.places - own)])
        state = pool.start(state, [3, 2 * (pool.places - own)])
        assert state.last[3] == 7 and state.last[2 * (pool.places - own)] == 4
        state, tokens, lp, *_ = pool.decode(
            placed, state, keys=keys(16), temperature=1.0, stop_ids=(), budgets=[3] * 16, active=np.arange(16) == 3
        )
        row = [5, 6, 7, *np.asarray(tokens)[3, :3].tolist()]
        np.testing.assert_allclose(np.asarray(lp)[3, :3], plain_logprob(np.array(row), 1.0)[2:], atol=1e-4)
    assert pool.compiles() <= len(pool.programs)


def test_a_row_is_full_when_its_own_slots_are():
    """Four of its own: the prompt's last token and three sampled ones; the fourth sampled token is pending, outside the cache."""
    pool = Sampler(CONFIG, **SHARED | dict(own_length=4))
    state = pool.insert(pool.init(), pool.prefill(PARAMS, [[5, 6, 7], [9]]), [0, 0, 1], [0, 1, 2])
    call = dict(keys=keys(6), temperature=1.0, stop_ids=())
    state, _, _, count, reason = pool.decode(PARAMS, state, budgets=[9, 2, 9, 0, 0, 0], **call)
    np.testing.assert_array_equal(count, [4, 2, 4, 0, 0, 0])
    np.testing.assert_array_equal(reason, [CACHE_FULL, BUDGET, CACHE_FULL, RUNNING, RUNNING, RUNNING])
    np.testing.assert_array_equal(state.length[:3], [6, 4, 4])
    _, _, _, count, reason = pool.decode(PARAMS, state, budgets=[9, 9, 9, 0, 0, 0], **call)
    np.testing.assert_array_equal(count, [0, 2, 0, 0, 0, 0])
    np.testing.assert_array_equal(reason[:3], [CACHE_FULL] * 3)


def test_bytes_are_those_of_the_arrays(shared):
    """One prompt of 8 tokens for two slots of 24: 3 x 8 + 6 x 24 tokens of 2 layers, 2 heads of 8, keys and values, 4 bytes."""
    state = shared.init()
    arrays = jax.tree.leaves((state.cache, state.prompts.cache))
    assert shared.nbytes() == sum(leaf.nbytes for leaf in arrays) == (3 * 8 + 6 * 24) * 2 * 2 * 8 * 2 * 4
    assert Sampler(CONFIG, **SHARED | dict(own_length=0)).own_length == 40 - 8


def test_bad_input_is_refused_before_a_device_is_touched(shared):
    with pytest.raises(ValueError, match="prompt 0 has 9 tokens; 1 to 8 fit the prompt buckets"):
        shared.prefill(PARAMS, [[1] * 9])
    prompts = shared.prefill(PARAMS, [[1], [2]])
    with pytest.raises(ValueError, match="two prompts for place 1"):
        shared.insert(shared.init(), prompts, [0, 1], [2, 3])
    with pytest.raises(ValueError, match=r"load: 1 sources for places \[3\]; want as many, distinct, below 3"):
        shared.place(shared.init(), prompts, [0], [3])
    for change, message in (
        (dict(slots=5), r"5 slots on 1 shard\(s\) are not places of shared_slots=2"),
        (dict(shared_slots=-1), "shared_slots -1"),
        (dict(shared_slots=0), "own_length is for them alone"),
        (dict(own_length=0, cache_length=8), "want room for the slots' own"),
    ):
        with pytest.raises(ValueError, match=message):
            Sampler(CONFIG, **SHARED | change)


def test_a_mesh_that_would_split_a_place_is_refused(config):
    config.mesh.update({"data": 8, "fsdp": 1, "tensor": 1})
    with pytest.raises(ValueError, match=r"8 slots on 8 shard\(s\) are not places of shared_slots=2"):
        Sampler(CONFIG, **SHARED | dict(slots=8), mesh=make_mesh(config.mesh))
