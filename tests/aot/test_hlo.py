import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P
from jax.sharding import Mesh, NamedSharding

from slca.aot.hlo import collectives

# A module as a TPU compiler prints it: a loop of 28 trips with its count in the condition, one of 8 inside it, a kernel whose
# text has lines of its own, a conditional, a reduce-scatter written as a fused all-reduce, an asynchronous pair.
MODULE = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%inner_cond (p: (u32[], bf16[224,128])) -> pred[] {
  %limit.1 = u32[]{:T(128)} constant(8)
  %i.1 = u32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%i.1, %limit.1), direction=LT
}

%inner (p: (u32[], bf16[224,128])) -> (u32[], bf16[224,128]) {
  %cp = (bf16[224,128]{1,0:T(8,128)(2,1)}, bf16[224,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), channel_id=1, source_target_pairs={{0,1},{1,0}}
  %done = bf16[224,128]{1,0} collective-permute-done(%cp)
  ROOT %t.1 = (u32[], bf16[224,128]) tuple(%i, %done)
}

%outer_cond (p: (s32[], f32[4,256])) -> pred[] {
  %limit = s32[]{:T(128)} constant(28)
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%outer (p: (s32[], f32[4,256])) -> (s32[], f32[4,256]) {
  %kernel = (f32[4,256]{1,0}, f32[4,256]{1,0}) custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"metadata":"{block: 512}"
}}, metadata={op_name="kernel"}
  %ag = bf16[16,1024]{1,0:T(8,128)(2,1)} all-gather(%k), channel_id=2, replica_groups=[16,4]<=[64], dimensions={0}, use_global_device_ids=true
  %ar = f32[4,256]{1,0} all-reduce(%k), replica_groups=mesh['axis_0'=16,'axis_1'=4], device_ids=([16,4]T(1,0)) {'axis_0'}, to_apply=%add
  %w.1 = (u32[], bf16[224,128]) while(%t), condition=%inner_cond, body=%inner, metadata={op_name="jit(step)/while"}
  ROOT %t.2 = (s32[], f32[4,256]) tuple(%i, %ar)
}

%all-reduce-scatter (input: f32[1024]) -> f32[256] {
  %ars = f32[1024]{0} all-reduce(%input), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %slice = f32[256]{0} dynamic-slice(%ars, %at), dynamic_slice_sizes={256}
}

%skip (p: f32[1024]) -> f32[256] {
  ROOT %zero = f32[256] constant(0)
}

%take (p: f32[1024]) -> f32[256] {
  ROOT %rs = f32[256]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter
}

ENTRY %main.1_spmd (a: f32[4,256]) -> f32[256] {
  %w = (s32[], f32[4,256]) while(%t0), condition=%outer_cond, body=%outer, metadata={op_name="jit(step)/while"}
  %both = (f32[8]{0}, /*index=1*/f32[8]{0}) all-reduce(%x, %y), replica_groups={}, to_apply=%add
  %ags = (f32[2]{0}, f32[128]{0}) all-gather-start(%x), replica_groups=[1,64]<=[64], dimensions={0}
  %agd = f32[128]{0} all-gather-done(%ags)
  ROOT %c = f32[256] conditional(%which, %a0, %a1), branch_computations={%skip, %take}
}
"""


def test_loops_conditionals_and_fused_forms():
    found = collectives(MODULE, chips=64)
    # bf16 [16,1024] among 4, 28 times; f32 [128] among 64, once
    assert found["all-gather"] == (29, 28 * 16 * 1024 * 2 * 3 / 4 + 128 * 4 * 63 / 64)
    # f32 [4,256] among 16, 28 times; two f32 [8] among all 64, once
    assert found["all-reduce"] == (29, 28 * 2 * 4 * 256 * 4 * 15 / 16 + 2 * 2 * 8 * 4 * 63 / 64)
    assert found["reduce-scatter"] == (1, 1024 * 4 * 3 / 4)  # the dearer branch counts
    assert found["collective-permute"] == (28 * 8, 28 * 8 * 224 * 128 * 2)
    assert set(found) == {"all-gather", "all-reduce", "reduce-scatter", "collective-permute"}


def test_a_loop_without_a_known_end_takes_the_trips_it_is_told():
    text = MODULE.replace("compare(%i, %limit), direction=LT", "and(%a, %b)")
    assert collectives(text, 64, unknown_trips=5)["collective-permute"].calls == 5 * 8


def test_no_module_is_an_error():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        collectives("nothing", 8)


def test_a_real_program():
    """[8, 16] x [16, 4] with the contraction split over 4 devices, 5 times: one all-reduce of f32 [8, 4] a trip."""
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("x",))

    def step(x, w):
        def body(_, y):
            product = jax.lax.with_sharding_constraint(y @ w, NamedSharding(mesh, P()))
            return y + product.sum()

        return jax.lax.fori_loop(0, 5, body, x)

    places = NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("x", None))
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=at) for shape, at in zip(((8, 16), (16, 4)), places)]
    compiled = jax.jit(step, out_shardings=places[0]).lower(*shapes).compile()
    found = collectives(compiled.as_text(), 4)
    assert found == {"all-reduce": (5, 5 * 2 * 8 * 4 * 4 * 3 / 4)}
