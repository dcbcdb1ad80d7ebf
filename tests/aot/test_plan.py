"""The real programs of a small run, compiled for 8 CPU devices, and what is said of them."""

import importlib

import jax
import pytest

from slca.aot import chips, plan, programs, report
from slca.aot.advice import advice
from slca.aot.hlo import Traffic
from slca.aot.measure import Memory, Result, measure
from slca.aot.programs import Program, bytes_a_chip
from slca.learn.sharding import make_mesh, own_mesh
from slca.validate import ConfigError


@pytest.fixture
def tiny():
    c = importlib.import_module("configs.tiny").get_config()
    c.mesh.update({"data": 1, "fsdp": 4, "tensor": 2})
    c.model.update({"width": 32, "layers": 2, "ff": 64, "heads": 4, "kv_heads": 2, "head_dim": 8})
    c.rollout.update({"prompts": 16, "group": 4, "slots": 64, "prompt_buckets": (64, 192), "suffix_buckets": (16,)})
    c.train.update({"micro_rows": 1, "mini_batches": 1})
    return c


def by_hand(model, length, tokens):
    """Matrix FLOPs of one update with `remat=block` and dense attention."""
    D, H, K, h, F = model.width, model.heads, model.kv_heads, model.head_dim, model.ff
    block = 2 * (D * H * h + 2 * D * K * h + H * h * D + 3 * D * F)
    scores = 2 * H * h * length
    forward, again = block + 2 * scores, block - 2 * F * D + 2 * scores  # the last product is not needed again
    backward = 2 * block + 4 * scores
    head = 2 * D * model.vocab  # forward and two backward: a row's logits are one chunk, which is kept
    return tokens * (model.layers * (forward + again + backward) + 3 * head)


def test_every_program_compiles_and_its_numbers_are_the_runs(tiny):
    target = chips.target("cpu:8")
    shapes = plan.shapes(tiny, target)
    found = {r.program.name: r for r in plan.results(shapes, target.chip, ("update", *plan.SAMPLING))}
    assert list(found) == ["update", *(name for name in plan.SAMPLING if name != "spread")]  # no prompts are shared
    update, decode = found["update"], found["decode"]
    longest = tiny.rollout.max_prompt_tokens + tiny.rollout.max_response_tokens
    rows = 64 // (max(tiny.train.row_lengths) // longest)
    assert update.program.size == f"{rows} rows x {max(tiny.train.row_lengths)} tokens, {rows // 4} micro-batches"
    assert decode.program.trips == tiny.rollout.decode_steps and decode.program.tokens == 64 * tiny.rollout.decode_steps
    assert update.flops == pytest.approx(by_hand(shapes.model, max(tiny.train.row_lengths), update.program.tokens), rel=0.01)
    assert found["decode_few"].program.size.startswith("16 of 64 slots")
    assert all(r.seconds > 0 and r.memory.arguments > 0 and not r.error for r in found.values())
    assert update.traffic["all-reduce"].bytes > 0 and "insert" in found
    text = report.paragraph(update, target.chip, shapes)
    assert text.startswith("\nupdate: ") and "matrix FLOPs" in text and "all-reduce" in text
    assert len(report.table(list(found.values()), target.chip, "cpu:8")) == 8


def test_shared_prompts_are_stored_once_a_place(tiny):
    """16 places of 4 slots on 4 shards: by hand, a chip holds 4 prompts of 192 tokens and 16 rows of 192 of their own."""
    tiny.rollout.shared_slots, tiny.rollout.max_prompt_tokens, tiny.rollout.max_response_tokens = 4, 192, 192
    target = chips.target("cpu:8")
    shapes = plan.shapes(tiny, target)
    assert programs.asked_slots(shapes) == 64 and programs.slot_unit(shapes) == 16
    token = 2 * 2 * 1 * 8 * 4  # keys and values, layers, KV heads of a chip, head size, float32
    assert plan.slot_bytes(shapes) == (192 + 4 * 192) * token
    found = {r.program.name: r for r in plan.results(shapes, target.chip, plan.SAMPLING, "70")}  # in whole places: 64
    assert list(found) == [*plan.SAMPLING]
    assert found["insert"].program.size == "16 places from 8 prompts" and found["spread"].program.size == "4 of 16 places"
    assert found["decode"].program.size.startswith("64 of 64 slots x 192 tokens + 16 places x 192")
    assert all(r.seconds > 0 and not r.error for r in found.values())


def test_a_search_for_slots_without_a_sampler_program_is_none(tiny, monkeypatch):
    monkeypatch.setattr(plan, "measure", lambda program: program.name)
    target = chips.target("cpu:8")
    assert list(plan.results(plan.shapes(tiny, target), target.chip, ("update",), "search")) == ["update"]


def test_bytes_of_a_chip_follow_the_placement(tiny):
    shapes = plan.shapes(tiny, chips.target("cpu:8"))
    gate = shapes.state.params["blocks"]["gate"]
    assert gate.shape == (2, 32, 64) and bytes_a_chip(gate) == 2 * (32 // 4) * (64 // 2) * 4
    assert bytes_a_chip([jax.ShapeDtypeStruct((3, 5), "bfloat16")]) == 30


def test_what_does_not_fit_is_said_with_the_settings_that_help(tiny):
    tiny.train.micro_rows, tiny.model.remat = 4, "none"
    shapes = plan.shapes(tiny, chips.target("cpu:8"))
    chip = chips.Chip("small", 1e6, 1e12, 1e12, 1e11)
    traffic = {"all-reduce": Traffic(3, 1e9)}
    result = Result(programs.update(shapes), 1.0, Memory(1e5, 2e6, 0.0), 8e12, traffic)
    assert not result.fits(chip.hbm)
    text = report.paragraph(result, chip, shapes)
    assert "DOES NOT FIT" in text
    for setting in (
        "train.micro_rows=2",
        "model.remat=block",
        "model.attention=splash",
        "model.dtype=bfloat16",
        "mesh.tensor=4",
    ):
        assert setting in text
    assert "bound by" in text and set(result.bounds(chip)) == {"compute", "HBM", "ICI"}
    assert result.bounds(chip) == {"compute": 1.0, "HBM": result.program.passes * (1e5 + 2 * 2e6) / 1e12, "ICI": 1e9 / 1e11}


def test_no_row_is_advised_to_lie_on_several_hosts(tiny):
    """On hosts of 2 chips `tensor` is at its end with 2: a mesh with more is refused."""
    shapes = plan.shapes(tiny, chips.target("cpu:8"))
    hosts = shapes._replace(here=own_mesh(shapes.mesh, list(shapes.mesh.devices.flat[:2])), hosts=4)
    result = Result(programs.update(shapes), 1.0, Memory(1e5, 2e6, 0.0), 8e12, {})
    assert any(line.startswith("mesh.tensor=4: ") for line in advice(result, shapes))
    assert not any(line.startswith("mesh.tensor") for line in advice(result, hosts))


@pytest.mark.parametrize(
    "message, said, total",
    [
        ("Ran out of memory in memory space hbm. Used 18.26G of 15.75G hbm. Exceeded", "Used 18.26G of 15.75G hbm", 18.26),
        ("the total memory required for HLO temporaries (37.69G) exceeds available HBM (15.75G).", "required for HLO temporaries "
         "(37.69G) exceeds available HBM", 38.69),
    ],
)  # fmt: skip
def test_refused_for_want_of_memory_is_a_result(message, said, total):
    class Refuses:
        jaxpr = jax.jit(lambda: 0).trace().jaxpr

        def trace(self, *_):
            return self

        def lower(self):
            return self

        def compile(self):
            raise RuntimeError(f"RESOURCE_EXHAUSTED: {message}")

    result = measure(Program("update", "", Refuses(), (jax.ShapeDtypeStruct((2**28,), "float32"),), 5.0, 1, 1, 1, 8))
    assert result.error == said and not result.fits(1e15)
    assert result.memory.arguments == 2**30 and result.memory.total == pytest.approx(total * 2**30 + 5)


def fake(total):
    return Result(Program("decode", "", None, (), 0.0, 1, 1, 1, 1), 0.0, Memory(total, 0.0, 0.0), 0.0, {})


@pytest.mark.parametrize("fixed, each, most", [(100, 10, 88), (100, 11, 80), (950, 10, 4), (995, 10, 4), (100, 0.5, 1800)])
def test_search_ends_at_the_most_slots_that_fit(fixed, each, most):
    tried = []

    def attempt(slots):
        tried.append(slots)
        return fake(fixed + each * slots)

    slots, result = plan.search(attempt, 1000, 4, 4 * min(each, 8))
    assert slots == most and result.memory.total == fixed + each * most and len(tried) <= 5


def test_architectures_come_without_their_weights(config):
    config.model.source = "models/Qwen2.5-7B-Instruct"
    model = plan.model_of(config)
    assert (model.family, model.layers, model.kv_heads, model.tied) == ("qwen2", 28, 4, False)
    count = sum(x.size for x in jax.tree.leaves(jax.eval_shape(lambda: programs.transformer.init(model, jax.random.key(0)))))
    assert count == 7_615_616_512  # as the model's page has it
    config.model.source = "models/unheard-of"
    with pytest.raises(ConfigError, match=r"models/unheard-of: no such folder, and slca/aot/architectures.py knows Qwen"):
        plan.model_of(config)


def test_a_mesh_that_the_topology_does_not_hold_is_a_config_error(tiny):
    tiny.mesh.fsdp = 3
    with pytest.raises(ConfigError, match=r"does not equal the 8 devices at hand; set --mesh="):
        plan.shapes(tiny, chips.target("cpu:8"))


@pytest.mark.parametrize(
    "name, message",
    [("cpu:x", "expected cpu:N"), ("cpu:9999", "1 to 4096"), ("cpu:999", "started with 8 CPU devices")],
)
def test_topologies_that_are_none(name, message):
    with pytest.raises(chips.TopologyError, match=message):
        chips.target(name)


def test_a_tpu_topology_needs_libtpu(monkeypatch):
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(chips.TopologyError, match=r"needs libtpu: pip install -e '.\[tpu\]'"):
        chips.target("v5p:4x4x4")


def test_meshes_are_the_devices_in_order(config):
    config.mesh.update({"data": 2, "fsdp": 2, "tensor": 2})
    assert [d.id for d in make_mesh(config.mesh).devices.flat] == [d.id for d in jax.devices()]


def test_adapters_of_a_named_architecture_and_the_reference_of_a_kl_in_the_reward_are_counted():
    """Adam moments of the adapters alone: with rank 8 the state is the masters and some MiB, not three times the masters."""
    c = importlib.import_module("configs.0_5b").get_config()
    c.loss.kl_coef, c.reward.kl_coef, c.train.keep_reference = 0.0, 0.0, False
    target = chips.target("cpu:8")
    plain = plan.shapes(c, target)
    assert not plain.reference and plain.model.lora is None
    c.model.lora.rank, c.reward.kl_coef = 8, 0.1
    adapted = plan.shapes(c, target)
    assert adapted.reference and adapted.model.lora.rank == 8
    masters = bytes_a_chip(plain.state.params)
    assert bytes_a_chip(plain.state) == pytest.approx(3 * masters, rel=0.01)
    assert masters < bytes_a_chip(adapted.state) < 1.2 * masters
