"""From a checkpoint to an engine: flags that make no sense, and a run served over several devices."""

import argparse
import asyncio

import jax
import pytest

from configs.default import get_config
from slca.assemble import architecture
from slca.checkpoint import Checkpoints
from slca.policy import transformer
from slca.restore import make_template
from slca.serve.build import axes_of, buckets, build, context_of, mesh_of, options_of
from slca.serve.engine import Request
from slca.types import TrainState
from tests.serve.test_slots import read


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The workdir of a small run that was split over two tensor devices."""
    config = get_config()
    config.model.update(width=16, layers=1, heads=4, kv_heads=2, head_dim=8, ff=32, max_length=256)
    config.mesh.tensor = 2
    config.rollout.decode_steps = 8
    model = architecture(config, make_template(config).tokenizer)
    params = jax.jit(lambda key: transformer.init(model, key))(jax.random.key(0))
    workdir = tmp_path_factory.mktemp("run")
    with Checkpoints(workdir) as checkpoints:
        checkpoints.save(1, TrainState(params, (), jax.numpy.zeros((), int), jax.random.key(0)), {}, config.to_dict())
    return workdir


def options(checkpoint, *flags):
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint")
    options_of(parser)
    return parser.parse_args([f"--checkpoint={checkpoint}", "--cold", "--slots=4", *flags])


def answers(engine):
    """Ids of three conversations of two turns at once, each with its own seed."""
    prompt = engine.template.prompt([{"role": "user", "content": "how warm is it in Oslo?"}])

    async def talk(seed):
        ids, out = list(prompt), []
        for _ in range(2):
            sampled, _ = await read(engine.submit(Request(tuple(ids), 12, seed=seed)))
            out.append(sampled)
            ids += [*sampled, *engine.template.tokenizer.encode("and tomorrow?")]
        return out

    async def go():
        return await asyncio.gather(*[talk(seed) for seed in range(3)])

    try:
        return asyncio.run(asyncio.wait_for(go(), 300))
    finally:
        engine.close()


def test_a_mesh_gives_the_ids_of_one_device(run, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "device_count", lambda: 1)
        alone = answers(build(options(run, "--no-reuse")))
    assert "over" not in capsys.readouterr().out
    own = build(options(run))
    assert own.sampler.mesh.shape == {"data": 4, "fsdp": 1, "tensor": 2}
    assert "over 4 data x 1 fsdp x 2 tensor" in capsys.readouterr().out
    asked = build(options(run, "--mesh=fsdp=4,data=2", "--slots=3", "--cold"))
    assert asked.sampler.mesh.shape == {"data": 2, "fsdp": 4, "tensor": 1} and asked.sampler.slots == 8
    asked.close()
    assert answers(own) == alone


def test_axes():
    assert axes_of("data=2, tensor=4") == {"data": 2, "fsdp": 1, "tensor": 4}
    assert axes_of("tensor=2") == {"data": -1, "fsdp": 1, "tensor": 2}
    for text in (
        "2",
        "data",
        "data=",
        "data=x",
        "data=1,data=2",
        "rows=2",
        "data=1e3",
        "data=²",
        ",",
        "data=2,",
        "data=" + "9" * 5000,
    ):
        with pytest.raises(ValueError, match="--mesh"):
            axes_of(text)


def test_a_mesh_that_does_not_fit_the_devices_is_refused(run):
    for text in ("data=3", "data=-1,fsdp=-1", "tensor=0", "tensor=-2", "data=16", "tensor=3"):
        with pytest.raises(ValueError, match=f"(of --mesh={text})"):
            mesh_of(str(run), text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: jax.local_devices()[:3])
        with pytest.raises(ValueError, match=r"of the run's config.*--mesh="):
            mesh_of(str(run), "")
    assert mesh_of("nowhere", "").shape["data"] == 8


def test_contexts():
    template = make_template(get_config())
    least = len(template.prompt([{"role": "user", "content": "?"}]))
    assert context_of(0, 8000, template) == 4096 and context_of(0, 200, template) == 200
    assert context_of(least + 1, 200, template) == least + 1
    for asked in (1, least):
        with pytest.raises(ValueError, match=f"--context={asked}: .* has {least} tokens"):
            context_of(asked, 200, template)
    with pytest.raises(ValueError, match="--context=201: the model sees 200"):
        context_of(201, 200, template)


def test_buckets_double_up_to_the_context():
    assert buckets(1000) == (128, 256, 512, 1000) and buckets(100) == (100,) and buckets(128) == (128,)
