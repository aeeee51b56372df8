"""The layout: one pass, correspondence, ranges; invariants over generated plans."""

import pytest
from hypothesis import given, settings

from plan import DType, MemoryPlan, PlanConfig, PlanError, Range, Region
from plan.region import series_regions
from plan.scalars import FP32_SCALARS, INT32_SCALARS, fp32_index, int32_index
from plan.series import SERIES
from tests.helpers import small_plan
from tests.plan.plans import configs, planned, specs


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


def test_a_refused_finalize_leaves_the_plan_as_it_was():
    plan = MemoryPlan(PlanConfig("sgd"))
    plan.alloc_fc_weight((100,), "w")
    before = list(plan.tensors)
    with pytest.raises(PlanError, match="series G has 0 tensors, expected 1"):
        plan.finalize()
    assert list(plan.tensors) == before and [t.name for t in plan if t.name == "w"] == ["w"]
    plan.alloc_grad_fc_weight((100,), "w.grad")
    assert plan.finalize().range(Region.G_FC_WEIGHT).size == 512


def test_a_descriptor_keeps_its_hash_when_the_plan_is_finalized():
    plan = MemoryPlan(PlanConfig("adamw", half="fp16"))
    p = plan.parameter("w", "fc_weight", (10, 64))
    feature = plan.alloc_feature((2, 3), "x")
    marks = {p.weight: "weight", p.half_copy: "half", feature: "feature"}
    hashes = [hash(t) for t in marks]
    plan.finalize()
    assert p.weight.offset >= 0 and [hash(t) for t in marks] == hashes
    assert [marks[t] for t in (p.weight, p.half_copy, feature)] == ["weight", "half", "feature"]
    assert marks[plan.tensors["w"]] == "weight"


def test_series_ranges_follow_the_table_of_series():
    plan = small_plan("lamb", half="fp16", ema=True)
    for series in SERIES.values():
        for half in series.forms if series.kinds else ():
            whole = plan.series_range(series.letter, half=half)
            regions = series_regions(series.letter, half=half)
            assert whole == plan.range(regions[0], regions[-1]) and whole.size > 0
            bias, weight = (plan.series_range(series.letter, p, half) for p in ("bias", "weight"))
            assert bias.end == weight.base_offset and bias.size + weight.size == whole.size
    assert plan.series_range("A") == plan.series_range("A", half=True)
    assert (
        plan.series_range("N", "bias").size == plan.series_range("G", "bias", half=True).size == 0
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("X",), "series: got 'X', expected one of parameters: W, E, A, G, M, V, N"),
        (("S",), "series: got 'S', expected one of parameters"),
        (("W", "biases"), "series W: part got 'biases', expected 'all', 'bias', 'weight'"),
        (("W", "all", True), "series W: got kind 'fc_weight' in half, expected one of its FP32"),
    ],
)
def test_series_ranges_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(PlanError, match=message):
        small_plan().series_range(*arguments)


def test_what_may_be_given_as_a_range():
    plan = small_plan(half="fp16")
    weight = plan.parameters["fc.weight"].weight
    slot = Range(weight.offset, weight.slot_bytes)
    assert plan.resolve("fc.weight") == plan.resolve(weight) == weight.span == slot
    assert plan.resolve(Region.W_FC_WEIGHT) == plan.range(Region.W_FC_WEIGHT)
    pair = (Region.G_BN_BIAS, Region.G_DEEP_CONV)
    assert plan.resolve(pair) == plan.range(*pair)
    for bytes_of in (Range(256, 512), (256, 512), [256, 512]):
        assert plan.resolve(bytes_of) == Range(256, 512)
    assert all(type(n) is int for n in plan.resolve((256, 512)))


def test_what_may_not_be_given_as_a_range():
    plan = small_plan()
    for wrong in (7, None, (1, 2, 3), (0.5, 1024), (Region.W_FC_WEIGHT, 4.5)):
        with pytest.raises(
            TypeError, match=r"^adamw: range p got .*, expected Range\(base_offset,"
        ):
            plan.resolve(wrong, "adamw: range p")
    with pytest.raises(KeyError, match="adamw: range p: no tensor is named 'nothing'"):
        plan.resolve("nothing", "adamw: range p")
    with pytest.raises(PlanError, match="address order; swap"):
        plan.resolve((Region.G_DEEP_CONV, Region.G_BN_BIAS))
    other = MemoryPlan(PlanConfig("none"))
    stranger = other.parameter("fc.weight", "fc_weight", (7000,)).weight
    other.finalize()
    with pytest.raises(PlanError, match=r"x: got <DTensor fc.weight: .* of another plan, expected"):
        plan.resolve(stranger, "x")
    fresh = MemoryPlan()
    early = fresh.parameter("w", "fc_weight", (3,)).weight
    for wrong in (early, "w", Region.W_FC_WEIGHT):
        with pytest.raises(PlanError, match="the plan is not finalized, call finalize"):
            fresh.resolve(wrong, "x")


def test_what_a_range_holds_is_said_of_all_that_it_names():
    plan = small_plan(half="bf16", ema=True)
    assert plan.holds("scalar.step") == (("scalar.step", DType.INT32),)
    assert plan.holds(Region.A_FC_WEIGHT) == (("A_FC_WEIGHT", DType.BF16),)
    assert plan.holds(Region.I_A_DATA) == (("I_A_DATA", None),)
    pair = plan.holds((Region.E_DEEP_CONV, Region.G_BN_BIAS))
    assert dict(pair)["E_FC_WEIGHT_FP16"] is DType.BF16 and dict(pair)["G_BN_BIAS"] is DType.FP32
    assert plan.holds(Range(0, 256)) == plan.holds((0, 256)) == ()


@given(configs, specs)
@settings(max_examples=30, deadline=None)
def test_the_tensors_at_a_range_are_those_whose_slots_it_touches(config, wanted):
    plan = planned(config, wanted)
    tensors = list(plan)
    for k in range(0, len(tensors) - 2, 7):
        span = Range(tensors[k].span.end - 1, 2 + tensors[k + 1].slot_bytes)
        assert plan.tensors_at(span) == tuple(tensors[k : k + 3])
    assert plan.tensors_at(Range(plan.total_bytes, 256)) == ()


def test_scalars_lie_where_the_kernels_look_for_them():
    plan = MemoryPlan(PlanConfig("sgd", scalars={"gamma": 0.5})).finalize()
    start = plan.range(Region.S_SCALAR_FP32).base_offset
    assert [plan.scalar(n) for n in FP32_SCALARS] == [
        (start + 4 * fp32_index(n), "f4") for n in FP32_SCALARS
    ]
    start = plan.range(Region.S_SCALAR_INT32).base_offset
    assert [plan.scalar(n) for n in INT32_SCALARS] == [
        (start + 4 * int32_index(n), "i4") for n in INT32_SCALARS
    ]
    with pytest.raises(KeyError, match="no scalar is named 'lrr'"):
        plan.scalar("lrr")


def test_the_plan_says_what_it_is_in_one_line():
    plan = small_plan("lars", half="fp16")
    assert repr(plan) == (
        f"<MemoryPlan: lars, half=fp16, ema=False; parameters: 8, {plan.total_bytes:,} bytes>"
    )
