import dataclasses
import json
import pathlib
import tracemalloc

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from safetensors import safe_open

from slca.learn.sharding import make_mesh, shardings
from slca.policy import transformer, weights
from slca.policy.fill import fill
from slca.policy.layout import places
from tests.golden import recipe
from tests.policy.models import FAMILIES, params


def tensors(folder):
    with safe_open(folder / "model.safetensors", "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


@pytest.fixture
def folder(tmp_path):
    """A qwen3 checkpoint (untied) of the recipe."""
    return recipe.write_folder(tmp_path / "model", "qwen3", recipe.golden("qwen3")[0])


def rewrite(folder, change=None, **hf):
    """The folder with changed tensors and config fields."""
    found = tensors(folder)
    found = change(found) or found if change else found
    safetensors.numpy.save_file(found, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | hf))
    return folder


@pytest.mark.parametrize("name", recipe.CONFIGS)
def test_hf_to_ours_to_hf_is_bit_equal(tmp_path, name):
    """W4: every tensor survives, transposed or not."""
    source = recipe.write_folder(tmp_path / "in", name, recipe.golden(name)[0])
    weights.save(tmp_path / "out", *weights.load(source))
    before, after = tensors(source), tensors(tmp_path / "out")
    assert before.keys() == after.keys()
    for key in before:
        np.testing.assert_array_equal(before[key], after[key], err_msg=key)


@pytest.mark.parametrize("family", FAMILIES)
def test_save_and_load_are_inverse(tmp_path, family):
    weights.save(tmp_path, FAMILIES[family], params(family))
    config, back = weights.load(tmp_path)
    assert config.to_hf() == FAMILIES[family].to_hf()
    jax.tree.map(np.testing.assert_array_equal, back, params(family))


def test_mixed_dtypes_in_one_file(folder):
    """W5: bfloat16 matrices beside float32 norms."""
    rewrite(folder, lambda t: {k: v if "norm" in k else v.astype(ml_dtypes.bfloat16) for k, v in t.items()})
    _, p = weights.load(folder)
    stored = tensors(folder)["model.layers.1.mlp.up_proj.weight"]
    assert {leaf.dtype for leaf in jax.tree.leaves(p)} == {np.dtype("float32")}
    np.testing.assert_array_equal(p["blocks"]["up"][1], stored.T.astype(np.float32))
    _, low = weights.load(folder, dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(low)} == {np.dtype(ml_dtypes.bfloat16)}


def test_sharded_files_with_an_index(folder, tmp_path, monkeypatch):
    expected = weights.load(folder)
    monkeypatch.setattr(weights, "SHARD_BYTES", 40_000)
    weights.save(tmp_path / "parts", *expected)
    assert len(list((tmp_path / "parts").glob("model-*-of-*.safetensors"))) > 2
    config, p = weights.load(tmp_path / "parts")
    assert config.to_hf() == expected[0].to_hf()
    jax.tree.map(np.testing.assert_array_equal, p, expected[1])
    next((tmp_path / "parts").glob("model-00002*")).unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-\d+\.safetensors is missing"):
        weights.load(tmp_path / "parts")


def test_no_family_is_left_without_a_place():
    for config in FAMILIES.values():
        paths = {place.param for place in places(config)}
        flat = jax.tree_util.tree_flatten_with_path(transformer.param_shapes(config), is_leaf=lambda x: isinstance(x, tuple))[0]
        assert paths == {tuple(key.key for key in path) for path, _ in flat}


@pytest.mark.parametrize(
    "spread", [dict(data=1, fsdp=4, tensor=2), dict(data=2, fsdp=2, tensor=2), dict(data=8, fsdp=1, tensor=1)]
)
def test_loading_onto_a_mesh(folder, config, spread):
    config.mesh.update(spread)
    mesh = make_mesh(config.mesh)
    model, expected = weights.load(folder)
    _, placed = weights.load(folder, mesh=mesh)
    wanted = shardings(expected, transformer.logical_axes(model), mesh)
    jax.tree.map(np.testing.assert_array_equal, placed, expected)
    jax.tree.map(lambda leaf, place: leaf.sharding == place or pytest.fail(str(leaf.sharding)), placed, wanted)


def test_without_a_mesh_a_process_reads_onto_a_device_of_its_own(folder, monkeypatch):
    """The first device of several processes is another process's for all but one of them."""
    own = jax.devices()[3]
    monkeypatch.setattr(jax, "local_devices", lambda *a, **k: [own])
    assert {leaf.device for leaf in jax.tree.leaves(weights.load(folder)[1])} == {own}


def test_a_shard_reads_only_its_block(folder, config, monkeypatch):
    """The largest piece ever read is a quarter of the largest matrix when tensor x fsdp = 4 split both of its axes."""
    read, sizes = weights._Folder.read, []
    monkeypatch.setattr(weights._Folder, "read", lambda *a: sizes.append(read(*a).size) or read(*a))
    config.mesh.update(data=2, fsdp=2, tensor=2)
    weights.load(folder, mesh=make_mesh(config.mesh))
    assert max(sizes) == 96 * 48 // 4


def drop(key):
    return lambda t: {k: v for k, v in t.items() if k != key}


def spoil(key, number):
    def change(t):
        t[key] = t[key].copy()
        t[key][3, 3] = number

    return change


@pytest.mark.parametrize(
    ("change", "hf", "message"),
    [
        (
            lambda t: t | {"model.layers.0.mlp.gate_proj.bias": np.ones(80, np.float32)},
            {},
            "no qwen3 parameter takes model.layers.0.mlp.gate_proj.bias",
        ),
        (drop("model.layers.2.self_attn.q_norm.weight"), {}, "model.layers.2.self_attn.q_norm.weight .*missing"),
        (
            drop("lm_head.weight"),
            {},
            "lm_head.weight is missing but tie_word_embeddings is false.*set tie_word_embeddings to true",
        ),
        (
            None,
            {"tie_word_embeddings": True},
            "lm_head.weight differs from model.embed_tokens.weight.*set tie_word_embeddings to false",
        ),
        (None, {"num_hidden_layers": 2}, r"no qwen3 parameter takes model.layers.2.*num_hidden_layers"),
        (None, {"intermediate_size": 96}, r"mlp.\w+_proj.weight has shape \(80, 48\), config.json implies \(96, 48\)"),
        (None, {"model_type": "llama"}, "no llama parameter takes model.layers.0.self_attn.k_norm.weight"),
        (None, {"model_type": "t5"}, "model_type 't5' is not supported"),
        (lambda t: t | {"model.norm.weight": np.ones(48, np.int8)}, {}, "model.norm.weight is I8; quantised"),
        (
            lambda t: {f"language_{key}": value for key, value in t.items()},
            {},
            r"model.embed_tokens.weight and 35 more tensors .* are missing \(there is language_lm_head.weight that none takes\)",
        ),
        (spoil("model.embed_tokens.weight", np.nan), {}, "model.embed_tokens.weight holds NaN or infinity"),
        (spoil("model.layers.1.mlp.up_proj.weight", np.inf), {}, "model.layers.1.mlp.up_proj.weight holds NaN or infinity"),
        (None, {"rms_norm_eps": "x"}, r"model/config.json: model config: norm_eps must be a number above 0, is 'x'"),
        (None, {"rope_scaling": "x"}, r"model/config.json: a field is not of the kind it should be"),
    ],
)
def test_what_does_not_fit_is_an_error_with_its_remedy(folder, change, hf, message):
    """W2 (different), W3, W6: strict both ways; and numbers that no training leaves behind."""
    rewrite(folder, change, **hf)
    with pytest.raises(ValueError, match=message) as error:
        weights.load(folder)
    assert "\n" not in str(error.value)


def test_tied_model_whose_file_also_has_the_head(folder):
    """W2: equal -> dropped."""
    rewrite(folder, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"]}, tie_word_embeddings=True)
    config, p = weights.load(folder)
    assert config.tied and "head" not in p


def in_two_files(folder, listed=lambda file: file, again=()):
    """The folder's tensors in a.safetensors and b.safetensors with an index; those of `again` in both."""
    found = tensors(folder)
    (folder / "model.safetensors").unlink()
    files = {"a.safetensors": list(found)[:9], "b.safetensors": [*list(found)[9:], *again]}
    for file, names in files.items():
        safetensors.numpy.save_file({name: found[name] for name in names}, folder / file)
    index = {name: listed(file) for file, names in files.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def test_an_index_that_does_not_fit_its_files(folder):
    first, expected = next(iter(tensors(folder))), weights.load(folder)[1]
    whole = (folder / "model.safetensors").read_bytes()
    in_two_files(folder)
    jax.tree.map(np.testing.assert_array_equal, weights.load(folder)[1], expected)
    (folder / "model.safetensors").write_bytes(whole)
    with pytest.raises(ValueError, match=r"holds two models, model.safetensors and the files of model.safetensors.index.json"):
        weights.load(folder)
    in_two_files(folder, again=[first])
    with pytest.raises(ValueError, match=f"{first} is in a.safetensors and in b.safetensors"):
        weights.load(folder)
    (folder / "model.safetensors").write_bytes(whole)
    in_two_files(folder, listed=lambda file: f"../{file}")
    with pytest.raises(ValueError, match=r"weight_map names '../a.safetensors'; files of a model lie beside its index"):
        weights.load(folder)


def test_saving_over_another_model_leaves_one(folder, monkeypatch):
    expected = weights.load(folder)
    with monkeypatch.context() as patch:
        patch.setattr(weights, "SHARD_BYTES", 40_000)
        weights.save(folder, *expected)
    jax.tree.map(np.testing.assert_array_equal, weights.load(folder)[1], expected[1])
    weights.save(folder, *expected)
    assert not (folder / "model.safetensors.index.json").exists()
    jax.tree.map(np.testing.assert_array_equal, weights.load(folder)[1], expected[1])


def test_files_that_stand_for_weights(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ValueError, match=r"model.safetensors is a git-lfs pointer, not the weights: run `git lfs pull`"):
        weights.load(folder)
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config.json is missing; adapter_config.json is there: merge the adapter"):
        weights.load(folder)


def test_files_that_are_not_there(folder, tmp_path):
    with pytest.raises(ValueError, match=r"no model at .*expected a folder with config.json and model.safetensors"):
        weights.load(tmp_path / "nowhere")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or truncated"):
        weights.load(folder)
    file.rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"model.safetensors is missing; torch .bin files are pickles"):
        weights.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON"):
        weights.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config.json is missing"):
        weights.load(folder)


def test_stop_ids_come_from_both_files(folder):
    """P15: chat checkpoints often name the turn's end in generation_config.json only."""
    rewrite(folder, eos_token_id=1)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 17]}))
    assert weights.load(folder)[0].stop_ids == (1, 17)


def test_saving_params_that_do_not_fit(tmp_path):
    config, p = FAMILIES["qwen3"], params("qwen3")
    with pytest.raises(ValueError, match=r"blocks/q_norm has shape \(2, 9\), the config says \(2, 8\)"):
        weights.save(tmp_path, config, p | {"blocks": p["blocks"] | {"q_norm": np.ones((2, 9))}})
    with pytest.raises(ValueError, match="lack final_norm"):
        weights.save(tmp_path, config, {k: v for k, v in p.items() if k != "final_norm"})
    assert not list(pathlib.Path(tmp_path).glob("*.safetensors"))


def test_reading_holds_no_more_than_a_tensor_as_stored_and_as_wanted(tmp_path):
    """Host memory beside the parameters, as Python's allocator counts it (the CPU's arrays may be NumPy's own memory)."""
    config = dataclasses.replace(FAMILIES["qwen3"], vocab=4096, width=64, layers=4, ff=2048, tied=False)
    largest = 4096 * 64 * 4
    weights.save(tmp_path, config, transformer.init(config, jax.random.key(0)))
    weights.load(tmp_path)  # compiles and imports
    tracemalloc.start()
    try:
        params_ = weights.load(tmp_path)[1]
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak > largest and peak - held < 2.2 * largest
    assert params_["embed"].nbytes == largest


def test_a_host_reads_its_devices_blocks_alone(folder, config, monkeypatch):
    """Of eight devices four are this host's: with both axes of matrices split over them, it reads half of what is split."""
    read, sizes = weights._Folder.read, []
    monkeypatch.setattr(weights._Folder, "read", lambda *a: sizes.append(read(*a).size) or read(*a))
    config.mesh.update(data=1, fsdp=4, tensor=2)
    mesh = make_mesh(config.mesh)
    model, source = weights._open_folder(folder)
    group = [place for place in places(model) if place.param == ("blocks", "up")]
    whole = jax.ShapeDtypeStruct((3, 48, 80), np.float32)
    there = shardings({"up": whole}, {"up": ("layers", "embed", "mlp")}, mesh)["up"]

    class Half:
        def addressable_devices_indices_map(self, shape):
            mine = set(mesh.devices[0, :2].ravel())
            return {d: index for d, index in there.addressable_devices_indices_map(shape).items() if d in mine}

    kept = {}
    monkeypatch.setattr(jax, "make_array_from_single_device_arrays", lambda shape, place, shards: kept.update(all=shards))
    fill(whole, Half(), group, source.read)
    assert sum(sizes) == 3 * 48 * 80 // 2 and max(sizes) == 48 * 80 // 8
    assert [shard.shape for shard in kept["all"]] == [(3, 12, 40)] * 4
    monkeypatch.undo()
    left, right, low_left, low_right = (np.asarray(shard) for shard in kept["all"])
    half = np.concatenate([np.concatenate([left, right], 2), np.concatenate([low_left, low_right], 2)], 1)
    np.testing.assert_array_equal(half, weights.load(folder)[1]["blocks"]["up"][:, :24])
