"""The layout: one pass, correspondence, ranges, variants, JSON; invariants over generated plans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan import (
    DType,
    MemoryPlan,
    PlanConfig,
    PlanError,
    Region,
    checks,
    digest,
    finalize_variants,
    first_difference,
    from_json,
    segments,
    to_json,
)
from plan.models import MODELS, ParameterSpec, plan_model
from plan.region import PARAMETER_KINDS, WEIGHT_KINDS
from tests.helpers import small_plan

sizes = st.integers(0, 2**42)
specs = st.lists(st.tuples(st.sampled_from(PARAMETER_KINDS), sizes), max_size=12)
configs = st.builds(
    PlanConfig,
    optimizer=st.sampled_from(["sgd", "momentum", "adamw", "lars", "lamb", "lion", "none"]),
    half=st.sampled_from([None, "fp16", "bf16"]),
    ema=st.booleans(),
)


def planned(config, wanted):
    plan = MemoryPlan(config)
    for k, (kind, n) in enumerate(wanted):
        plan.parameter(f"p{k}", kind, (n,))
    return plan.finalize()


@given(configs, specs)
@settings(max_examples=150, deadline=None)
def test_layout_invariants(config, wanted):
    plan = planned(config, wanted)
    cursor = 0
    for tensor in plan:
        assert tensor.offset == cursor and cursor % 256 == 0
        assert tensor.slot_bytes >= tensor.nbytes + 16
        cursor += tensor.slot_bytes
    assert plan.total_bytes == cursor
    assert sum(plan.range(r).size for r in Region) == cursor
    for p in plan.parameters.values():
        base = p.weight.offset - plan.series_range("W").base_offset
        for tensor, series in ((p.gradient, "G"), (p.m, "M"), (p.v, "V"), (p.ema, "E")):
            if tensor is not None:
                assert tensor.offset - plan.series_range(series).base_offset == base
                assert tensor.slot_bytes == p.weight.slot_bytes
        base = p.weight.offset - plan.series_range("W", "weight").base_offset
        halves = ((p.half_copy, "A"), (p.half_gradient, "G"), (p.half_ema, "E"))
        for tensor, series in halves:
            if tensor is not None:
                start = plan.series_range(series, "weight", half=True).base_offset
                assert 2 * (tensor.offset - start) == base
                assert 2 * tensor.slot_bytes == p.weight.slot_bytes


@given(configs, specs)
@settings(max_examples=60, deadline=None)
def test_json_round_trip_keeps_the_digest(config, wanted):
    plan = planned(config, wanted)
    again = from_json(to_json(plan))
    assert digest(again) == digest(plan)
    assert [(t.name, t.offset) for t in again] == [(t.name, t.offset) for t in plan]
    assert first_difference(plan, again) is None


@given(st.lists(st.tuples(st.sampled_from(PARAMETER_KINDS), st.integers(0, 2000)), max_size=9))
@settings(max_examples=60, deadline=None)
def test_granules_never_straddle_tensors(wanted):
    plan = planned(PlanConfig("sgd", half="fp16"), wanted)
    table = segments(plan, Region.W_BN_BIAS, Region.W_DEEP_CONV)
    base = plan.series_range("W").base_offset
    for row, tensor in enumerate(table.tensors):
        mine = np.flatnonzero(table.rows == row)
        assert mine[0] == table.first[row] == (tensor.offset - base) // 512
        assert len(mine) * 512 == tensor.slot_bytes
    halves = segments(plan, Region.A_FC_WEIGHT, Region.A_DEEP_CONV)
    weights = segments(plan, Region.W_FC_WEIGHT, Region.W_DEEP_CONV)
    np.testing.assert_array_equal(halves.rows, weights.rows)


def test_segment_rows_are_wider_above_65536_tensors():
    plan = plan_model([ParameterSpec(f"p{k}", "fc_weight", (1,)) for k in range(65537)],
                      PlanConfig("none"))  # fmt: skip
    rows = segments(plan, Region.W_FC_WEIGHT).rows
    assert rows.dtype == np.uint32 and rows[-1] == 65536


def test_ranges_are_whole_regions_in_plain_ints():
    plan = small_plan(half="fp16")
    first, last = plan.range(Region.G_BN_BIAS), plan.range(Region.G_DEEP_CONV)
    both = plan.range(Region.G_BN_BIAS, Region.G_DEEP_CONV)
    assert (both.base_offset, both.end) == (first.base_offset, last.end)
    assert all(type(x) is int for x in both)
    assert plan.range(Region.W_EQ_BIAS).size == 0
    with pytest.raises(PlanError, match="address order; swap"):
        plan.range(Region.G_DEEP_CONV, Region.G_BN_BIAS)


def test_buckets_are_those_of_the_origin():
    plan = small_plan()
    assert plan.bucket1 == plan.range(Region.G_DEEP_CONV, Region.R_RESULT)
    assert plan.bucket2 == plan.range(Region.G_BN_BIAS, Region.G_FIRST_CONV)
    assert plan.bucket2.end == plan.bucket1.base_offset
    assert {t.name for t in plan.tensors_in(Region.R_RESULT)} == {
        "result.loss", "result.top1", "result.top5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("sgd", ""), ("momentum", "M"), ("adamw", "MV"), ("lars", "MN")]
)
def test_a_parameter_has_the_series_of_its_optimizer(optimizer, moments):
    p = small_plan(optimizer, half="bf16", ema=True).parameters["fc.weight"]
    have = {"M": p.m, "V": p.v, "N": p.norm}
    assert "".join(k for k, t in have.items() if t is not None) == moments
    assert p.half_gradient.dtype is p.half_copy.dtype is p.half_ema.dtype is DType.BF16


def test_the_single_calls_of_the_origin_make_the_same_layout():
    plan, single = small_plan("momentum"), MemoryPlan(PlanConfig("momentum"))
    for p in plan.parameters.values():
        for call in ("", "grad_", "momentum_"):
            getattr(single, f"alloc_{call}{p.kind}")(p.weight.shape)
    single.finalize()
    for region in Region:
        assert single.range(region) == plan.range(region)
    with pytest.raises(AttributeError, match="alloc_rubbish"):
        single.alloc_rubbish  # noqa: B018


def test_the_other_single_calls():
    plan = MemoryPlan(PlanConfig(half="fp16", ema=True, bn_folded=True))
    assert [t.region.name for t in plan.alloc_bn_stats(8, "bn1")] == [
        "B_PREV_MEAN", "B_PREV_VAR", "B_NEXT_MEAN", "B_NEXT_VAR",
    ]  # fmt: skip
    assert plan.alloc_eq_bias(8).region is Region.W_EQ_BIAS
    assert plan.alloc_eq_scale(8).region is Region.W_EQ_SCALE
    assert plan.alloc_feature((2, 4, 4, 9)).padded_shape == (2, 4, 4, 16)
    assert plan.alloc_scalar(DType.INT8).region is Region.S_SCALAR_INT8
    assert plan.alloc_scalar(DType.FP16).region is Region.S_SCALAR_FP16
    assert plan.alloc_temp(3, DType.INT32).region is Region.T_TEMP_INT32
    a, b, c, d = plan.alloc_inputs(4, (4, 8, 8, 3), DType.FP16)
    plan.finalize()
    assert a.offset < b.offset < c.offset < d.offset
    zone = plan.range(Region.I_A_LABEL, Region.I_A_DATA)
    assert zone.size == a.slot_bytes + b.slot_bytes


def test_grad_slots_are_shared_by_shape_and_refuse_another():
    plan = MemoryPlan()
    first = plan.alloc_grad_slot((2, 3), 0)
    assert plan.alloc_grad_slot((2, 3), 0) is first
    assert plan.alloc_grad_slot((2, 4), 3) is not first
    with pytest.raises(PlanError, match=r"grad slot 0: got shape \(3, 2\), expected \(2, 3\)"):
        plan.alloc_grad_slot((3, 2), 0)
    with pytest.raises(PlanError, match="got 4, expected 0, 1, 2 or 3"):
        plan.alloc_grad_slot((2, 3), 4)


def test_a_disabled_region_names_the_option():
    for config, region, option in (
        (PlanConfig(), Region.E_BN_BIAS, "ema=True"),
        (PlanConfig(), Region.A_FC_WEIGHT, "half='fp16'"),
        (PlanConfig(half="fp16"), Region.F_FEATURE_FP32, "half=None"),
        (PlanConfig(), Region.W_EQ_BIAS, "bn_folded=True"),
    ):
        with pytest.raises(PlanError, match=f"{region.name} is disabled .* expected .*{option}"):
            MemoryPlan(config).alloc(region, (1,))


def test_refusals_of_the_plan():
    plan = MemoryPlan()
    plan.parameter("w", "fc_weight", (3,))
    with pytest.raises(PlanError, match="name is taken"):
        plan.parameter("w", "fc_weight", (3,))
    with pytest.raises(PlanError, match="kind got 'conv', expected one of bn_bias"):
        plan.parameter("c", "conv", (3,))
    with pytest.raises(PlanError, match="dtype got fp16, expected fp32"):
        plan.alloc(Region.W_FC_WEIGHT, (1,), dtype=DType.FP16)
    with pytest.raises(PlanError, match="dtype got None, expected a dtype"):
        plan.alloc(Region.I_A_DATA, (1,))
    with pytest.raises(PlanError, match="not finalized, call finalize"):
        plan.range(Region.W_FC_WEIGHT)
    with pytest.raises(PlanError, match="not finalized"):
        to_json(plan)
    plan.finalize()
    with pytest.raises(PlanError, match="finalized already"):
        plan.finalize()
    with pytest.raises(PlanError, match="plan is finalized, make a new one"):
        plan.parameter("x", "fc_weight", (3,))
    with pytest.raises(PlanError, match="optimizer got 'adamax', expected one of none, sgd"):
        PlanConfig("adamax")
    with pytest.raises(PlanError, match="half got 'fp8'"):
        PlanConfig(half="fp8")


def test_correspondence_names_the_two_tensors():
    plan = MemoryPlan(PlanConfig("sgd"))
    plan.alloc_fc_weight((100,), "w.a")
    plan.alloc_fc_weight((1000,), "w.b")
    plan.alloc_grad_fc_weight((1000,), "g.b")
    plan.alloc_grad_fc_weight((100,), "g.a")
    with pytest.raises(PlanError, match=r"g\.b .* lies 0 bytes .* its weight w\.a"):
        plan.finalize()


def test_correspondence_counts():
    plan = MemoryPlan(PlanConfig("sgd"))
    plan.alloc_fc_weight((100,), "w.a")
    with pytest.raises(PlanError, match=r"series G has 0 tensors, expected 1 .* w\.a has no"):
        plan.finalize()


@pytest.mark.parametrize(
    ("check", "shift", "message"),
    [
        (checks.check_region_order, -(2**20), "region order: .* expected at or after"),
        (checks.check_contiguity, 256, "contiguity of .* expected .* the end of"),
        (checks.check_correspondence, 256, "correspondence: fc.weight#G .* expected"),
        (checks.check_alignment, 16, "alignment: .* expected a multiple of 256"),
    ],
)
def test_each_check_finds_its_fault(check, shift, message):
    plan = small_plan()
    check(plan)
    tensor = plan.parameters["fc.weight"].gradient
    object.__setattr__(tensor, "offset", tensor.offset + shift)
    with pytest.raises(PlanError, match=message):
        check(plan)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_variants_have_equal_offsets(pairs):
    plans = []
    for which in (0, 1):
        plan = MemoryPlan()
        plan.parameter("w", "fc_weight", (10,))
        for k, pair in enumerate(pairs):
            plan.alloc_feature((pair[which], 4), f"feature{k}")
        plans.append(plan)
    finalize_variants(plans)
    for a, b in zip(*(p.tensors.values() for p in plans), strict=True):
        assert (a.name, a.offset) == (b.name, b.offset)
        assert b.slot_bytes == a.slot_bytes >= max(a.nbytes, b.nbytes) + 16
    assert digest(from_json(to_json(plans[1]))) == digest(plans[1])


def test_variants_that_differ_are_refused():
    a, b = MemoryPlan(), MemoryPlan()
    a.alloc_feature((1,), "x")
    b.alloc_feature((1,), "y")
    with pytest.raises(PlanError, match=r"is y in F_FEATURE_FP32, expected x"):
        finalize_variants([a, b])
    with pytest.raises(PlanError, match="expected PlanConfig"):
        finalize_variants([MemoryPlan(), MemoryPlan(PlanConfig(half="fp16"))])
    b.alloc_feature((1,), "z")
    with pytest.raises(PlanError, match="expected .* in all plans"):
        finalize_variants([a, b])


def test_the_digest_sees_order_and_shape():
    def made(*names):
        plan = MemoryPlan()
        for name in names:
            plan.parameter(name, "fc_weight", (6,))
        return plan.finalize()

    assert digest(made("a", "b")) != digest(made("b", "a"))
    assert "tensor a" in first_difference(made("a", "b"), made("b", "a"))


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("mlp", 6, 535_818),
        ("resnet50", 161, 25_557_032),
        ("vgg16_bn", 58, 138_365_992),
        ("gpt2", 148, 124_439_808),
    ],
)
def test_models_have_their_published_sizes(name, tensors, parameters):
    listed = MODELS[name]()
    assert len(listed) == tensors
    assert sum(int(np.prod(s.shape)) for s in listed) == parameters
    weights = [s for s in listed if s.kind in WEIGHT_KINDS]
    assert all(s.kind in PARAMETER_KINDS for s in listed) and weights
