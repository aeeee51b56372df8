"""The four layout checks: each finds its fault and names it."""

import pytest

from plan import MemoryPlan, PlanConfig, PlanError, Region, checks
from tests.helpers import small_plan


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


def test_the_runs_that_adjoin_are_the_series_and_what_one_launch_covers():
    runs = {(first.name, last.name) for first, last in checks.ADJOINING}
    assert {
        ("B_PREV_MEAN", "B_NEXT_VAR"), ("W_BN_BIAS", "W_DEEP_CONV"), ("E_BN_BIAS", "E_DEEP_CONV"),
        ("E_FC_WEIGHT_FP16", "E_DEEP_CONV_FP16"), ("A_FC_WEIGHT", "A_DEEP_CONV"),
        ("G_BN_BIAS", "G_DEEP_CONV"), ("G_DEEP_CONV", "R_RESULT"),
        ("G_FC_WEIGHT_FP16", "G_DEEP_CONV_FP16"), ("M_BN_BIAS", "M_DEEP_CONV"),
        ("V_BN_BIAS", "V_DEEP_CONV"), ("I_A_LABEL", "I_B_DATA"),
    } <= runs  # fmt: skip
    assert all(isinstance(end, Region) for run in checks.ADJOINING for end in run)
