import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import monitoring

from slca.credit.algorithms import ALGORITHMS
from slca.learn.batch import pack, pack_sft
from slca.learn.forward import policy_forward
from slca.learn.loss import policy_loss
from slca.learn.probe import make_logprob
from slca.learn.sharding import by_rows, make_mesh, put_batch, row_shards, shardings, state_shardings
from slca.learn.terms import make_terms
from slca.learn.update import accumulate, init_state, make_score, make_sft_update, make_update
from slca.types import POLICY

from .conftest import episode

COMPILED = []
monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: COMPILED.append(name) if "backend_compile" in name else None
)


def meshed(config, mesh, toy):
    """Mesh and functions for sizes (data, fsdp, tensor) over as many devices; (None, ...) for a single one."""
    if mesh is None:
        return None, *policy_forward(toy.config)
    config.mesh.update(dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)))
    made = make_mesh(config.mesh, jax.devices()[: int(np.prod(mesh))])
    return made, *policy_forward(toy.config, made)


def gradient(config, toy, params, batch_args, *, mesh=None):
    """The whole mini-batch's gradient as host arrays."""
    made, hidden, unembed = meshed(config, mesh, toy)
    (batch,) = pack(*batch_args, config=config, data_size=row_shards(made))
    rows = config.train.micro_rows * row_shards(made)
    score = make_score(hidden, unembed, config, made, 1.0)
    at = None if made is None else shardings(params, toy.axes, made)

    def compute(params, batch):
        loss = partial(policy_loss, loss=config.loss)
        return accumulate(score, lambda lp, b, h: loss(lp, b, entropy=h), params, batch, rows, made, at)[0]

    if made is None:
        return jax.device_get(jax.jit(compute)(params, batch))
    grads = jax.jit(compute, in_shardings=(at, by_rows(made)), out_shardings=at)(params, put_batch(batch, made))
    for g, place in zip(jax.tree.leaves(grads), jax.tree.leaves(at), strict=True):
        assert g.sharding == place  # S2
    return jax.device_get(grads)


def relative_difference(a, b):
    """Largest difference of a leaf over the largest entry of that leaf."""
    return max(np.abs(x - y).max() / np.abs(y).max() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.fixture
def slow_gradient(toy, episodes, credit):
    """token_mean, on-policy: sum over episodes of -A grad log pi / tokens, from whole logits of right-padded rows."""
    live = [(e, c) for e, c in zip(episodes, credit, strict=True) if e.scored]
    tokens = np.zeros((len(live), 40), np.int32)
    factor = np.zeros((len(live), 40), np.float32)
    total = sum(int((e.writer == POLICY).sum()) for e, _ in live)
    for row, (e, c) in enumerate(live):
        tokens[row, : len(e.tokens)] = e.tokens
        factor[row, : len(e.tokens)] = np.where(e.writer == POLICY, -c[e.turn] / total, 0)

    def objective(params):
        positions = jnp.broadcast_to(jnp.arange(40), tokens.shape)
        hidden = toy.hidden(params, tokens, positions, jnp.ones_like(tokens))
        table = jax.nn.log_softmax(hidden @ toy.unembed(params), -1)
        chosen = jnp.take_along_axis(table[:, :-1], tokens[:, 1:, None], -1)[..., 0]
        return jnp.sum(factor[:, 1:] * chosen)

    return jax.device_get(jax.jit(jax.grad(objective))(toy.params()))


@pytest.mark.parametrize(
    "packed, micro_rows, mesh",
    [
        (True, 1, None),  # four micro-batches of a row
        (False, 4, None),  # two of four
        (True, 1, (2, 2, 2)),
        (False, 2, (1, 1, 4)),  # two KV heads on four tensor devices: replicated
    ],
)
def test_gradient_identity(config, toy, episodes, credit, slow_gradient, packed, micro_rows, mesh):  # contract 8, M7, M8
    config.train.update(pack=packed, micro_rows=micro_rows)
    got = gradient(config, toy, toy.params(), (episodes, credit), mesh=mesh)
    assert relative_difference(got, slow_gradient) < 1e-5


MESHES = [None, (1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1), (1, 2, 1), (1, 8, 1), (2, 2, 1), (1, 1, 2), (1, 1, 4), (2, 2, 2)]


@pytest.mark.nightly
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("micro_rows", [1, 2, 4])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_gradient_identity_in_full(config, toy, episodes, credit, slow_gradient, packed, micro_rows, mesh):
    config.train.update(micro_rows=micro_rows, pack=packed)
    got = gradient(config, toy, toy.params(), (episodes, credit), mesh=mesh)
    assert relative_difference(got, slow_gradient) < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "constant", "per_segment_mean"])
@pytest.mark.parametrize("ratio", ["token", "segment", "sequence"])
def test_gradient_identity_of_every_mode(config, toy, episodes, credit, aggregation, ratio):
    config.loss.update(aggregation=aggregation, ratio=ratio)
    config.train.update(micro_rows=8, pack=False)
    base = gradient(config, toy, toy.params(), (episodes, credit))
    config.train.update(micro_rows=1, pack=True)
    for mesh in (None, (2, 2, 2)):
        assert relative_difference(gradient(config, toy, toy.params(), (episodes, credit), mesh=mesh), base) < 1e-5


def start(config, toy, optimizer, mesh=None, hidden=None, **kwargs):
    """(update, state, data shards) for a fresh run; `hidden` replaces the policy's forward."""
    made, policy, unembed = meshed(config, mesh, toy)
    state = init_state(toy.params(), optimizer, jax.random.key(0))
    placement = None if made is None else state_shardings(state, toy.axes, made)
    update = make_update(hidden or policy, unembed, optimizer, config, mesh=made, placement=placement, **kwargs)
    return update, state if made is None else jax.device_put(state, placement), row_shards(made)


def host(tree):
    return jax.device_get(
        jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)
    )


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(host(a)), jax.tree.leaves(host(b)), strict=True))


@pytest.fixture
def adamw():
    return optax.adamw(1e-2)


def test_steps_skips_and_compiles(config, toy, episodes, credit, adamw):
    """One program: three steps, then an all-masked and a non-finite batch that leave every bit as it was."""
    update, state, _ = start(config, toy, adamw)
    (batch,) = pack(episodes, credit, config=config)
    before = host(state)
    compiled = len(COMPILED)
    state, metrics = update(state, batch)
    first = {name: (float(s), float(w)) for name, (s, w) in metrics.items()}
    assert first["ratio"] == (96.0, 96.0)  # contract 10: exactly 1 for each of the 96 trained tokens
    assert first["kl/old"][0] == 0 and first["step/taken"] == (1.0, 1.0) and first["loss"][1] == 1.0
    expected = -sum(
        float(np.sum(np.where(e.writer == POLICY, c[e.turn], 0))) for e, c in zip(episodes, credit, strict=True) if e.scored
    )
    assert first["loss"][0] == pytest.approx(expected / 96, rel=1e-4)
    assert not same(before.params, state.params) and int(state.step) == 1
    for _ in range(2):
        state, metrics = update(state, batch)
    assert len(COMPILED) - compiled == 1 and int(state.step) == 3  # S1

    kept = host(state)
    state, metrics = update(state, batch._replace(loss_weight=np.zeros_like(batch.loss_weight)))  # M6
    assert same(kept, state)
    found = {name: (float(s), float(w)) for name, (s, w) in metrics.items()}
    assert found["step/empty"] == (1.0, 1.0) and found["step/taken"] == (0.0, 1.0)
    assert found["loss"] == found["ratio"] == found["grad_norm"] == (0.0, 0.0)  # omitted, not inf

    broken = batch.advantage.copy()
    broken[batch.loss_weight > 0] = np.inf
    state, metrics = update(state, batch._replace(advantage=broken))
    assert same(kept, state) and float(metrics["step/nonfinite"][0]) == 1.0
    state, metrics = update(state, batch)
    assert int(state.step) == 4 and len(COMPILED) - compiled == 1


def test_sharded_state_stays_where_it_is(config, toy, episodes, credit, adamw):
    """S1, S2, W9: specs and dtypes of params and moments agree and never change; one compile; donated buffers."""
    update, state, shards = start(config, toy, adamw, mesh=(2, 2, 2))
    (batch,) = pack(episodes, credit, config=config, data_size=shards)
    old = state.params["blocks"]["gate"]
    kinds = jax.tree.map(lambda x: (x.sharding, x.dtype), state)
    compiled = len(COMPILED)
    for _ in range(3):
        state, _ = update(state, batch)
    assert len(COMPILED) - compiled == 1
    assert jax.tree.map(lambda x: (x.sharding, x.dtype), state) == kinds
    assert old.is_deleted()  # S9, W10
    moments = state.opt_state[0]
    for tree in (moments.mu, moments.nu):
        assert jax.tree.map(lambda x: x.sharding.spec, tree) == jax.tree.map(lambda x: x.sharding.spec, state.params)
    assert state.params["blocks"]["gate"].sharding.spec == jax.P(None, "fsdp", "tensor")


def test_bf16_parameters_keep_their_dtypes(config, toy, episodes, credit, adamw):  # W8, W9
    update = make_update(toy.lookup, toy.unembed, adamw, config)
    state = jax.jit(lambda p: init_state(jax.tree.map(lambda x: x.astype(jnp.bfloat16), p), adamw, jax.random.key(0)))(
        toy.params()
    )
    dtypes = jax.tree.map(lambda x: x.dtype, state)
    (batch,) = pack(episodes, credit, config=config)
    compiled = len(COMPILED)
    for _ in range(2):
        state, _ = update(state, batch)
    assert jax.tree.map(lambda x: x.dtype, state) == dtypes and len(COMPILED) - compiled == 1


def test_bf16_compute_on_a_mesh(config, toy, episodes, credit):
    """The matrix' gradient is summed over devices in f32: rounding does not grow with their number (and XLA on CPU aborts on bf16)."""
    toy.hidden = lambda p, tokens, *_: p["embed"][tokens].astype(jnp.bfloat16)
    toy.unembed = lambda p: p["embed"].T.astype(jnp.bfloat16)
    norms = []
    for mesh in (None, (2, 2, 2)):
        made, _, _ = meshed(config, mesh, toy)
        state = init_state(toy.params(), optax.sgd(1.0), jax.random.key(0))
        placement = None if made is None else state_shardings(state, toy.axes, made)
        state = state if made is None else jax.device_put(state, placement)
        update = make_update(toy.hidden, toy.unembed, optax.sgd(1.0), config, mesh=made, placement=placement)
        (batch,) = pack(episodes, credit, config=config, data_size=row_shards(made))
        norms.append(float(update(state, batch)[1]["grad_norm"][0]))
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


def test_micro_batches_are_one_scan(config, toy, episodes, credit, adamw):  # S8
    config.train.micro_rows = 1
    update = make_update(toy.lookup, toy.unembed, adamw, config)
    (batch,) = pack(episodes, credit, config=config)
    jaxpr = jax.make_jaxpr(update)(init_state(toy.params(), adamw, jax.random.key(0)), batch).jaxpr.eqns[0].params["jaxpr"]
    scans = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
    assert [e.params["length"] for e in scans] == [4]
    inside = scans[0].params["jaxpr"].jaxpr.outvars  # what is stacked has one axis more outside
    assert [v.aval.shape for v in scans[0].outvars] == [v.aval.shape for v in inside]  # nothing of a micro-batch is kept


def test_gradient_clipping(config, toy, episodes, credit):
    config.optim.clip_norm = 0.1
    update, state, _ = start(config, toy, optax.sgd(1.0), hidden=toy.lookup)
    before = host(state.params)
    (batch,) = pack(episodes, credit, config=config)
    state, metrics = update(state, batch)
    step = jax.tree.map(lambda a, b: a - b, host(state.params), before)
    assert float(metrics["grad_norm"][0]) > 0.2  # reported before clipping
    assert np.sqrt(sum(float(np.sum(x**2)) for x in jax.tree.leaves(step))) == pytest.approx(0.1, rel=1e-4)


def test_wrong_number_of_rows(config, toy, episodes, credit, adamw):
    (batch,) = pack(episodes, credit, config=config)
    config.train.micro_rows = 3
    update, state, _ = start(config, toy, adamw)
    with pytest.raises(ValueError, match="4 rows is not a multiple of the 3 rows"):
        update(state, batch)


def test_mesh_and_placement_go_together(config, toy, adamw):
    with pytest.raises(ValueError, match="both mesh and placement"):
        make_update(toy.hidden, toy.unembed, adamw, config, mesh=make_mesh(config.mesh))


def test_a_term_adds_to_the_loss(config, toy, episodes, credit, adamw):
    def nothing_is_free(logprob, batch):
        return jnp.sum(batch.loss_weight) * 3.0, {"free": (jnp.ones(()), jnp.ones(()))}

    (batch,) = pack(episodes, credit, config=config)
    plain = {}
    for terms in ((), (nothing_is_free,)):
        update, state, _ = start(config, toy, optax.sgd(1.0), hidden=toy.lookup, terms=terms)
        plain[terms] = update(state, batch)[1]
    without, with_term = plain.values()
    assert float(with_term["loss"][0]) == pytest.approx(float(without["loss"][0]) + 3.0, rel=1e-5)
    assert float(with_term["free"][1]) == 2.0  # two micro-batches


@pytest.mark.parametrize("ratio", ["token", "segment"])
def test_summary_rewards_never_reach_tool_tokens(config, episodes, credit, ratio):  # contract 6
    config.loss.update(ratio=ratio)
    (batch,) = pack(episodes, credit, config=config)
    other = credit.copy()
    for n, e in enumerate(episodes):
        other[n, len(e.turns) - 1] += 1.0  # the summary
    (changed,) = pack(episodes, other, config=config)
    (entangled,) = pack(episodes, credit + 1.0, config=config)
    logprob = jnp.asarray(np.random.default_rng(0).normal(size=batch.tokens.shape) - 2, jnp.float32)
    old = jnp.asarray(logprob + 0.05)

    gradient = jax.jit(jax.grad(lambda x, b: policy_loss(x, b, config.loss)[0]))

    def logit_gradient(b):
        return np.asarray(gradient(logprob, b._replace(old_logprob=old)))

    tool, summary = batch.kind == 0, batch.kind == 1
    a, b = logit_gradient(batch), logit_gradient(changed)
    np.testing.assert_array_equal(a[tool], b[tool])
    assert (a[summary] != b[summary]).any() and (logit_gradient(entangled)[tool] != a[tool]).any()


def test_two_sweeps_move_the_ratio(config, toy, episodes, credit, adamw):  # P4, M23
    config.train.update(mini_batches=2, micro_rows=4)
    update, state, _ = start(config, toy, adamw, hidden=toy.lookup)
    batches = pack(episodes, credit, config=config)
    old = make_logprob(toy.lookup, toy.unembed, config)
    batches = [b._replace(old_logprob=old(state.params, b)) for b in batches]
    ratios = []
    for _ in range(2):
        for batch in batches:
            state, metrics = update(state, batch)
            ratios.append(float(metrics["kl/old"][0] / metrics["kl/old"][1]))
    assert abs(ratios[0]) < 1e-10 and min(ratios[1:]) > 1e-4  # only the very first step is on-policy


@pytest.mark.parametrize("mesh", [None, pytest.param((2, 2, 2), marks=pytest.mark.nightly)])
def test_rebel_does_not_depend_on_micro_batches_or_devices(config, toy, episodes, credit, mesh):  # contract 8
    config.loss.update(dict(ALGORITHMS["rebel"].loss))
    credit = np.repeat(credit[:, :1], 4, 1)
    terms, norms = make_terms(ALGORITHMS["rebel"].terms), []
    for sizes, micro_rows in ((None, 8), (mesh, 4 if mesh is None else 1)):
        config.train.micro_rows = micro_rows
        update, state, shards = start(
            config, toy, optax.sgd(0.1), sizes, hidden=toy.lookup if mesh is None else None, terms=terms
        )
        (batch,) = pack(episodes, credit, config=config, data_size=shards, groups=True)
        batch = batch._replace(old_logprob=np.where(batch.loss_weight > 0, -3.0, np.nan).astype(np.float32))
        made = None if sizes is None else make_mesh(config.mesh)
        metrics = update(state, batch if made is None else put_batch(batch, made))[1]
        norms.append([float(metrics[name][0]) for name in ("loss", "grad_norm", "term/rebel")])
    assert norms[0][1] > 0 and norms[1] == pytest.approx(norms[0], rel=1e-4)


def test_sft_lowers_the_likelihood_loss(config, toy):
    config.sft.update(batch_rows=4, row_length=40)
    examples = [
        (e.tokens, (e.writer == POLICY).astype(float)) for e in (episode(3, [(8, 2), (6, 0)], sample=n) for n in range(8))
    ]
    (batch,) = pack_sft(examples, config)
    optimizer = optax.adamw(3e-2)
    update = make_sft_update(toy.lookup, toy.unembed, optimizer, config)
    state = init_state(toy.params(), optimizer, jax.random.key(0))
    expected = np.mean([-toy.reference_logprob(state.params, t, hidden=toy.lookup)[w > 0] for t, w in examples])
    losses = []
    for _ in range(4):
        state, metrics = update(state, batch)
        losses.append(float(metrics["loss"][0]))
    assert losses[0] == pytest.approx(expected, rel=1e-5) and losses[-1] < losses[0] - 0.5


def test_shapes_of_random_batches_come_from_a_short_list(config):  # S5, S6
    rng = np.random.default_rng(0)
    shapes = set()
    for _ in range(200):
        rows = [episode(3, [(int(n), 0)], sample=k) for k, n in enumerate(rng.integers(1, 70, rng.integers(1, 17)))]
        shapes.add(pack(rows, np.ones((len(rows), 1)), config=config)[0].tokens.shape)
    assert shapes <= {(rows, length) for rows in (2, 4, 8, 16) for length in (40, 80)}


@pytest.mark.parametrize("micro_rows", [1, 2, 4])
def test_micro_batches_of_very_different_rows(config, toy, micro_rows):  # M7: lengths 3, 50, 7, 120
    config.train.update(row_lengths=(128,), pack=False)
    rows = [episode(1, [(n, 0)], sample=k) for k, n in enumerate((3, 50, 7, 120))]
    credit = np.array([[1.0], [-2.0], [0.5], [3.0]])

    def gradient_of(micro):
        config.train.micro_rows = micro
        score = make_score(toy.lookup, toy.unembed, config, None, 1.0)
        (batch,) = pack(rows, credit, config=config)
        loss = partial(policy_loss, loss=config.loss)
        compute = jax.jit(
            lambda p, b: accumulate(score, lambda lp, b, h: loss(lp, b, entropy=h), p, b, micro, None)[0]["embed"]
        )
        return np.asarray(compute(toy.params(), batch))

    # By hand, in float64: every token of the 180 weighs alike, whatever its row or micro-batch.
    table, expected = np.asarray(toy.params()["embed"], np.float64), 0.0
    for e, c in zip(rows, credit[:, 0], strict=True):
        for before, chosen in zip(e.tokens[:-1], e.tokens[1:], strict=True):
            p = np.exp(table @ table[before] - (table @ table[before]).max())
            off = np.eye(len(table))[chosen] - p / p.sum()
            grad = np.outer(off, table[before])
            grad[before] += off @ table
            expected = expected - c / 180 * grad
    got = gradient_of(micro_rows)
    assert np.abs(got - expected).max() / np.abs(expected).max() < 1e-6


def test_environment_tokens_train_nothing_and_are_seen(config, toy, episodes, credit):  # M1, M2
    """Other log-probs of environment tokens leave loss and gradient alone; they are attended to whatever their loss mask is."""
    config.train.pack = False
    (batch,) = pack(episodes, credit, config=config)
    learnt = batch.loss_weight > 0
    environment = (batch.episode > 0) & ~learnt & (batch.positions >= 6)  # behind every prompt
    assert environment.sum() > 20
    logprob = jnp.asarray(np.random.default_rng(0).normal(size=batch.tokens.shape) - 3, jnp.float32)
    loss = jax.jit(jax.value_and_grad(lambda x: policy_loss(x, batch, config.loss)[0]))
    (a, ga), (b, gb) = loss(logprob), loss(jnp.where(environment, -40.0, logprob))
    assert a == b and not np.asarray(ga)[environment].any()
    np.testing.assert_array_equal(ga, gb)

    score = jax.jit(make_score(toy.hidden, toy.unembed, config, None, 1.0))
    whole = np.asarray(score(toy.params(), batch)[0])
    unmasked = batch._replace(loss_weight=np.ones_like(batch.loss_weight), segment=np.zeros_like(batch.segment))
    np.testing.assert_array_equal(score(toy.params(), unmasked)[0], whole)
    changed = batch._replace(tokens=np.where(environment, (batch.tokens + 1) % 48, batch.tokens))
    rows = environment.any(1) & (learnt & (np.cumsum(environment, 1) > 0)).any(1)
    after = learnt & (np.cumsum(environment, 1) > 0)
    other = np.asarray(score(toy.params(), changed)[0])
    assert rows.any() and (np.abs(other - whole)[after] > 1e-4).mean() > 0.9
    np.testing.assert_array_equal(other[learnt & ~after], whole[learnt & ~after])


def test_the_compile_time_of_the_update(config, toy, episodes, credit, adamw, capsys):  # S7
    """Logged; summing over micro-batches may not cost many times the compilation of one gradient."""
    config.train.micro_rows = 1
    (batch,) = pack(episodes, credit, config=config)
    state = init_state(toy.params(), adamw, jax.random.key(0))
    score = make_score(toy.lookup, toy.unembed, config, None, 1.0)

    def one(params, batch):
        return jax.grad(lambda p: policy_loss(score(p, batch)[0], batch, config.loss)[0])(params)

    def seconds(function, *arguments):
        lowered, began = function.lower(*arguments), time.perf_counter()
        lowered.compile()
        return time.perf_counter() - began

    jax.config.update("jax_enable_compilation_cache", False)
    try:
        whole = seconds(make_update(toy.lookup, toy.unembed, adamw, config), state, batch)
        alone = seconds(jax.jit(one), state.params, jax.tree.map(lambda x: x[:1], batch))
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    with capsys.disabled():
        print(f" [an update compiles in {whole:.2f} s, one gradient in {alone:.2f} s] ", end="")
    assert whole < 10 * alone + 2


def test_no_gather_depends_on_what_a_process_holds(config, episodes, credit):  # M25
    """What is gathered over processes has the same shapes in the same order, also from one that has nothing to train."""
    config.train.update(mini_batches=2)
    dead = [episode(4, [(3, 0)], group=n // 4, sample=n % 4, end="dead") for n in range(8)]
    found = []
    for rows in (episodes, dead, [*episodes[:4], *dead[4:]]):
        asked = []

        def gather(counts, asked=asked):
            asked.append((counts.shape, counts.dtype))
            return np.stack([counts, np.full_like(counts, 20)])  # another process with more

        shapes = [x.tokens.shape for x in pack(rows, credit, config=config, gather=gather)]
        found.append((asked, shapes))
    assert found[0] == found[1] == found[2] and len(found[0][0]) == 6
