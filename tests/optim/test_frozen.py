"""A plan with frozen parameters trains the others to the bits of a plan without them."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig, PlanError
from plan.series import PARAMETER_KINDS
from rangeops import Arena, OptimizerStep, Report, averaged, load, ops, save
from tests import tolerance
from tests.optim.frozen import (
    PATTERNS,
    fill,
    frozen,
    gradients,
    of_frozen,
    of_trained,
    plan_of,
    same,
    start,
    trained,
)

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "lars", "lamb", "lion")


def trains_alike(device, optimizer, pattern, config, options, steps=4):
    pair = [Arena(plan_of(optimizer, f, **config), device=device) for f in (True, False)]
    fill(pair[0], PATTERNS[pattern])
    for one in pair:
        start(one)
    kept = of_frozen(pair[0])
    pair_of_steps = [OptimizerStep(one, lr=0.02, weight_decay=0.1, **options) for one in pair]
    for k in range(steps):
        for one, step in zip(pair, pair_of_steps, strict=True):
            for micro in range(2 if step.accumulate else 1):
                gradients(one, 10 * k + micro, bad=k == 1 and bool(step.check))
                if step.accumulate:
                    step.accumulate()
            step()
        same(of_trained(pair[0]), of_trained(pair[1]))
        same(of_frozen(pair[0]), kept)
    status = [step.status() for step in pair_of_steps]
    for name in ("step", "skipped_steps", "loss_scale", "grad_norm"):
        assert getattr(status[0], name) == getattr(status[1], name), name
    assert pair[0].nonfinite_tensor() == pair[1].nonfinite_tensor()
    counts = pair[0].groups.steps()
    assert {counts[tensor.name] for tensor in frozen(pair[0])} == {0}
    if options.get("clip_norm"):
        found, wanted = (ops.read_norms(one) for one in pair)
        assert {n: v for n, v in found.items() if not n.startswith("ice")} == wanted


CASES = {
    "plain": ({}, {}),
    "clip": ({}, {"clip_norm": 3.0}),
    "kept": ({}, {"clear_grad": False, "check": True}),
    "ema": ({"ema": True}, {"ema_decay": 0.9, "clip_value": 4.0}),
    "fp16": ({"half": "fp16", "ema": True}, {"ema_decay": 0.9, "loss_scale": 8.0}),
    "bf16": ({"half": "bf16"}, {"clip_norm": 3.0}),
    "gathered": ({"half": "fp16", "accumulate": True}, {"clip_norm": 3.0}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_trained_tensors_move_as_without_frozen_ones(optimizer, case):
    config, options = CASES[case]
    pattern = "nan" if len(case) % 2 else "large"
    trains_alike("cpu", optimizer, pattern, config, options)


@pytest.mark.parametrize(
    ("optimizer", "pattern"), [("adamw", "nan"), ("lars", "large"), ("lamb", "nan")]
)
def test_trained_tensors_move_as_without_frozen_ones_by_kernels(optimizer, pattern):
    config = {"half": "fp16", "ema": True, "accumulate": True, "ice": 140}
    trains_alike("cuda", optimizer, pattern, config, {"clip_norm": 3.0, "ema_decay": 0.9}, steps=1)


def test_a_graph_steps_over_what_nobody_uses(device):
    arena = Arena(plan_of("adamw", half="fp16", ema=True, ice=140), device=device)
    fill(arena, 0xFF)
    start(arena)
    kept = of_frozen(arena)
    step = OptimizerStep(arena, lr=0.1, clip_norm=1.0)
    gradients(arena, 0)
    graph = step.capture()
    for k in range(2):
        gradients(arena, k)
        graph.replay()
    assert arena.scalars.step == 2 and arena.scalars.skipped_steps == 0
    same(of_frozen(arena), kept)


def test_the_average_of_a_frozen_parameter_is_itself(device):
    arena = Arena(plan_of("adamw", half="fp16", ema=True, ice=140), device=device)
    fill(arena, 0xFF)
    start(arena)
    step = OptimizerStep(arena, lr=0.1, ema_decay=0.5)
    gradients(arena, 0)
    step()
    kept, live = of_frozen(arena), of_trained(arena)
    averages = {t.name: arena.download(f"{t.name}#E") for t in trained(arena)}
    with averaged(arena):
        same(of_frozen(arena), kept)
        for name, values in averages.items():
            np.testing.assert_array_equal(arena.download(name), values, err_msg=name)
    same(of_trained(arena), live)
    same(of_frozen(arena), kept)


def test_what_is_planned_as_frozen_stays_so():
    arena = Arena(plan_of("adamw"), device="cpu")
    ice = tuple(t.name for t in frozen(arena))
    assert arena.groups.frozen == ice and len(ice) == len(PARAMETER_KINDS)
    with pytest.raises(ValueError, match="got ice.fc_weight, which was planned with trainable=Fal"):
        arena.groups.unfreeze("ice.fc_weight")
    with pytest.raises(ValueError, match="got ice.bn_bias, which was planned"):
        arena.groups.unfreeze(["fc.weight", "ice.*"])
    arena.groups.freeze("*")
    arena.groups.unfreeze("*")
    assert arena.groups.frozen == ice
    arena.groups.freeze("fc.weight")
    arena.groups.unfreeze(lambda tensor: tensor.name == "fc.weight")
    arena.groups.freeze("ice.fc_bias")
    arena.groups.restore({"groups": {}, "frozen": []})
    assert arena.groups.frozen == ice
    again = copy.deepcopy(arena)
    assert again.groups.frozen == ice


def test_a_checkpoint_leaves_out_what_a_frozen_parameter_has_not(tmp_path):
    from safetensors.numpy import load_file

    config = {"half": "fp16", "ema": True}
    arena, again = (Arena(plan_of("adamw", **config), device="cpu") for _ in range(2))
    for one in (arena, again):
        fill(one, 0xFF)
    start(arena)
    step = OptimizerStep(arena, lr=0.1)
    gradients(arena, 0)
    step()
    save(arena, tmp_path / "run.safetensors")
    names = load_file(tmp_path / "run.safetensors").keys()
    assert "ice.fc_weight" in names and "m.fc.weight" in names
    assert not [n for n in names if "ice" in n and not n.startswith("ice.")]
    load(again, tmp_path / "run.safetensors")
    wanted = {n: b for n, b in of_trained(arena).items() if "#G" not in n}
    same({n: b for n, b in of_trained(again).items() if "#G" not in n}, wanted)
    same(of_frozen(again), of_frozen(arena))


def test_a_checkpoint_goes_from_trained_to_frozen_and_back(tmp_path):
    """Fine-tuning from a whole run: moments and averages of what is frozen now are left."""

    def arena_of(trainable):
        plan = MemoryPlan(PlanConfig("adamw", ema=True))
        plan.parameter("body", "fc_weight", (300,), trainable=trainable)
        plan.parameter("head", "fc_weight", (20,))
        return Arena(plan.finalize(), device="cpu")

    whole, tuned = arena_of(True), arena_of(False)
    whole["body"], whole["head"] = 2.0, 3.0
    save(whole, tmp_path / "a.safetensors")
    with pytest.raises(PlanError, match="the file has ema.body, the plan has none"):
        load(tuned, tmp_path / "a.safetensors")
    found = load(tuned, tmp_path / "a.safetensors", strict=False)
    assert set(found.unexpected) == {"ema.body", "m.body", "v.body"} and not found.missing
    assert float(tuned.download("body")[0]) == 2.0 and tuned.groups.frozen == ("body",)
    save(tuned, tmp_path / "b.safetensors")
    found = load(whole, tmp_path / "b.safetensors", strict=False)
    assert set(found.missing) == {"ema.body", "m.body", "v.body"}
    assert float(whole.download("body#E")[0]) == 2.0


def test_a_report_has_the_weights_of_frozen_parameters(device):
    arena = Arena(plan_of("adamw", half="fp16", ice=140), device=device)
    fill(arena, 0xFF)
    arena["ice.fc_weight"] = 2.0
    gradients(arena, 0)
    report = Report(arena)
    report.measure()
    rows = report.read()
    row = rows["ice.fc_weight"]
    assert (row.weight_max, row.weight_nonfinite) == (2.0, 0)
    assert row.weight_norm == pytest.approx(2 * 140**0.5, rel=tolerance.STEP)
    assert (row.gradient_norm, row.gradient_max, row.gradient_nonfinite) == (0.0, 0.0, 0)
    assert rows["fc.weight"].gradient_norm > 0


def test_what_is_frozen_later_keeps_its_moments_and_its_average_moves(device):
    arena = Arena(plan_of("adamw", frozen=False, ema=True), device=device)
    start(arena)
    step = OptimizerStep(arena, lr=0.1, ema_decay=0.5)
    gradients(arena, 0)
    step()
    arena.groups.freeze("fc.weight")
    names = [f"fc.weight{series}" for series in ("", "#M", "#V", "#E")]
    before = {name: arena.download(name) for name in names}
    gradients(arena, 1)
    step()
    for name in names[:3]:
        np.testing.assert_array_equal(arena.download(name), before[name], err_msg=name)
    gap, was = (abs(e - before["fc.weight"]) for e in (arena.download(names[3]), before[names[3]]))
    assert was.max() > 0 and gap.max() < 0.6 * was.max()


def test_a_plan_of_frozen_parameters_alone_steps(device):
    """Nothing is trained, and nothing moves; NaN in its bytes is no overflow."""
    plan = MemoryPlan(PlanConfig("adamw", half="fp16", ema=True))
    for kind in PARAMETER_KINDS:
        plan.parameter(f"ice.{kind}", kind, (300,), trainable=False)
    arena = Arena(plan.finalize(), device=device)
    fill(arena, 0xFF)
    start(arena)
    kept = of_frozen(arena)
    step = OptimizerStep(arena, lr=0.1, clip_norm=1.0)
    step()
    same(of_frozen(arena), kept)
    with averaged(arena):
        same(of_frozen(arena), kept)
    assert (arena.scalars.grad_norm, arena.scalars.skipped_steps) == (0.0, 0)


def test_a_plan_without_fp32_gradients_says_what_would_give_them():
    arena = Arena(plan_of("adamw", frozen=False, half="bf16"), device="cpu")
    with pytest.raises(PlanError, match=r"expected PlanConfig\(half=..., accumulate=True\)"):
        OptimizerStep(arena, accumulate=True)
    refused = (
        lambda: ops.accumulate_grad.bind(arena),
        lambda: ops.unscale.bind(arena),
        lambda: ops.cast_fp16_to_fp32.bind(arena),
    )
    for call in refused:
        with pytest.raises((PlanError, ValueError), match="accumulate=True"):
            call()


def test_an_op_over_a_whole_series_reads_no_garbage(device):
    """accumulate_grad and casts are given what is used; given the whole they are refused."""
    arena = Arena(plan_of("adamw", half="fp16", accumulate=True), device=device)
    for g, h in zip(
        arena.plan.in_use("G", "weight"), arena.plan.in_use("G", "weight", half=True), strict=True
    ):
        ops.accumulate_grad.bind(arena, g=g, h=h)
    with pytest.raises(PlanError, match="reach into a hole of this arena"):
        ops.accumulate_grad.bind(arena)
