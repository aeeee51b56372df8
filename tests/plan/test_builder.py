"""Announcing tensors: what a parameter gets, what is refused, and that a refusal leaves nothing."""

import pytest

from plan import DType, MemoryPlan, PlanConfig, PlanError, Region, to_json
from tests.helpers import small_plan


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("sgd", ""), ("momentum", "M"), ("adamw", "MV"), ("lars", "MN")]
)
def test_a_parameter_has_the_series_of_its_optimizer(optimizer, moments):
    p = small_plan(optimizer, half="bf16", ema=True).parameters["fc.weight"]
    have = {"M": p.m, "V": p.v, "N": p.norm}
    assert "".join(k for k, t in have.items() if t is not None) == moments
    assert p.half_gradient.dtype is p.half_copy.dtype is p.half_ema.dtype is DType.BF16


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


def test_a_refused_parameter_leaves_nothing_behind():
    plan = MemoryPlan(PlanConfig("adamw", half="fp16", ema=True))
    plan.alloc_temp((1,), DType.FP32, "w#V")
    before = [(t.name, t.id) for t in plan]
    with pytest.raises(PlanError, match="alloc w#V: the name is taken"):
        plan.parameter("w", "fc_weight", (3,))
    with pytest.raises(PlanError, match="expected at most 4 dimensions"):
        plan.parameter("x", "fc_weight", (1, 1, 1, 1, 1))
    with pytest.raises(TypeError):
        plan.parameter("x", "fc_weight", (2.5,))
    assert [(t.name, t.id) for t in plan] == before and not plan.parameters
    fine = plan.parameter("x", "fc_weight", (3,))
    assert fine.weight.id == len(before)


def test_refused_inputs_leave_nothing_behind():
    plan = MemoryPlan()
    plan.alloc_temp((1,), DType.FP32, "input_b.data")
    with pytest.raises(PlanError, match="alloc input_b.data: the name is taken"):
        plan.alloc_inputs(4, (4, 8, 8, 3), DType.FP32)
    assert not plan.tensors_in(Region.I_A_LABEL, Region.I_B_DATA)


def test_ids_count_announcements_and_names_are_unique():
    plan = small_plan("lamb", half="fp16", ema=True)
    assert [t.id for t in plan.tensors.values()] == list(range(len(plan.tensors)))
    assert {t.name for t in plan} == set(plan.tensors)


def test_a_parameter_says_what_it_has_in_one_line():
    for accumulate, gradients in ((False, "half_gradient"), (True, "gradient, half_gradient")):
        config = PlanConfig("momentum", half="fp16", accumulate=accumulate)
        p = MemoryPlan(config).parameter("w", "fc_weight", (10, 64))
        assert repr(p) == f"<Parameter w: fc_weight (10, 64); weight, {gradients}, half_copy, m>"
