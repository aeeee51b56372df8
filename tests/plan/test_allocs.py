"""The origin's ``alloc_*`` calls: every one exists, is typed, and lies in its region."""

import subprocess
import sys
from pathlib import Path

import pytest

from plan import DType, MemoryPlan, PlanConfig, PlanError, Region
from plan.region import series_region
from plan.series import PARAMETER_KINDS, SERIES
from tests.helpers import small_plan

WORDS = {
    ("W", False): "", ("E", False): "ema_", ("E", True): "half_ema_", ("A", True): "half_",
    ("G", False): "grad_", ("G", True): "half_grad_", ("M", False): "momentum_",
    ("V", False): "variance_", ("N", False): "norm_",
}  # fmt: skip
"""The origin's word for each series and form."""


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


CALLS = [
    (f"alloc_{WORDS[series.letter, half]}{kind}", series.letter, kind, half)
    for series in SERIES.values()
    for half in (series.forms if series.kinds else ())
    for kind in series.kinds_of(half=half)
]


@pytest.mark.parametrize(("call", "series", "kind", "half"), CALLS, ids=[c[0] for c in CALLS])
def test_every_series_and_kind_has_its_call(call, series, kind, half):
    plan = MemoryPlan(PlanConfig("lamb", half="fp16", ema=True, accumulate=True))
    tensor = getattr(plan, call)((3, 4), "t")
    assert tensor.region is series_region(series, kind, half)
    assert tensor is plan.tensors["t"] and tensor.shape == (3, 4)


def test_there_is_a_call_for_every_series_that_a_config_can_ask_for():
    config = PlanConfig("lamb", half="fp16", ema=True)
    asked = {pair for kind in PARAMETER_KINDS for pair in config.series_of(kind)}
    assert asked == set(WORDS) and len(CALLS) == len({name for name, *_ in CALLS}) == 42


def test_names_without_alloc_are_no_calls():
    for name in ("fc_weight", "finalise", "alloc_fc_wieght", "alloc_half_bn_bias"):
        assert not hasattr(MemoryPlan(PlanConfig(half="fp16")), name)


def test_a_half_of_another_format_than_the_plans_is_refused():
    plan = MemoryPlan(PlanConfig(half="fp16"))
    for call in (lambda: plan.alloc_scalar(DType.BF16), lambda: plan.alloc_temp(3, DType.BF16)):
        with pytest.raises(PlanError, match="dtype got bf16, expected fp16"):
            call()


def test_a_type_checker_refuses_calls_that_do_not_exist(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    file = tmp_path / "user.py"
    file.write_text(
        "from plan import DTensor, MemoryPlan\n"
        "plan = MemoryPlan()\n"
        "tensor: DTensor = plan.alloc_grad_fc_weight((3, 4), name='g')\n"
        "plan.finalise()\n"
        "plan.alloc_fc_wieght((3, 4))\n"
        "plan.alloc_fc_weight('3')\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(file)],
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(root), "PATH": ""},
        cwd=tmp_path,
    )
    wrong = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert wrong == [4, 5, 6], done.stdout
