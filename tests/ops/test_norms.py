"""Norms by tensor: the tree's bits for any launch, its digits, the clip, the report (S23)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig
from plan.chunks import chunks_of
from plan.segments import weight_segments
from rangeops import Arena, OptimizerStep, ops
from rangeops.device import host_loops
from rangeops.launch import launchers
from rangeops.optim.report import Report, report
from rangeops.verify import check, fill_random
from tests import tolerance
from tests.helpers import HAVE_GPU, put, small_plan


def one(shape, device, half=None, optimizer="sgd"):
    """Return an arena with one weight, and its gradient tensor."""
    plan = MemoryPlan(PlanConfig(optimizer, half=half))
    p = plan.parameter("w", "fc_weight", shape)
    return Arena(plan.finalize(), device=device), p.half_gradient or p.gradient


def norm_of(arena, half=False):
    step = OptimizerStep(arena, norms=True, check=False, scaling=False)
    step()
    assert ops.read_norms(arena)["w"] == pytest.approx(
        arena.scalars.grad_norm, rel=tolerance.STORED
    )
    return ops.read_norms(arena)["w"]


@pytest.mark.parametrize(
    ("values", "half", "want"),
    [
        ([300.0], "fp16", 300.0),
        ([5000.0, 5000.0], "fp16", 7071.0678118654755),
        ([1e20, 1e20], None, 1.4142136e20),
        ([1e-25, 1e-25], None, 1.4142136e-25),
        ([3.4028234e38] * 300, None, 3.4028234e38 * math.sqrt(300)),
    ],
)
def test_s23_norms_neither_overflow_nor_vanish(values, half, want, device):
    arena, gradient = one((len(values),), device, half)
    arena[gradient] = np.array(values, np.float16 if half else np.float32)
    step = OptimizerStep(arena, norms=True, check=False, scaling=False)
    step()
    assert ops.read_norms(arena)["w"] == pytest.approx(want, rel=tolerance.STORED)
    assert arena.scalars.skipped_steps == 0


@pytest.mark.parametrize(("count", "want"), [(2**20, 0.1024), (2**26, 0.8192)])
def test_s23_sums_of_many_keep_their_digits(count, want):
    arena, gradient = one((count,), "cuda" if HAVE_GPU else "cpu")
    arena[gradient] = 1e-4
    assert norm_of(arena) == pytest.approx(want, rel=tolerance.STORED)


def test_s23_adam_unscales_before_it_squares(device):
    arena, gradient = one((1,), device, optimizer="adam")
    arena[gradient] = 6.5536e19
    OptimizerStep(arena, loss_scale=65536.0, beta2=0.999)()
    v = arena.download(arena.plan.parameters["w"].v)[0]
    assert v == pytest.approx(1e27, rel=tolerance.STEP)


def shapes(which):
    """Return parameter shapes: many small tensors, awkward ones, one huge beside small ones."""
    rng = np.random.default_rng(4)
    if which == "many":
        return [(int(n),) for n in rng.integers(1, 700, 5000)]
    if which == "huge":
        return [(1,), (40_000_000,), (129,)]
    return [(n,) for n in (1, 127, 128, 129, 2047, 2048, 2049, 0, 1_048_576, 1_048_577)]


@pytest.mark.parametrize("which", ["many", "awkward", "huge"])
def test_sums_equal_their_references_for_any_launch_shape(which, monkeypatch):
    """On a GPU three block sizes, else one, two and three threads; a weight beside its gradient."""
    plan = MemoryPlan(PlanConfig("lars"))
    for k, shape in enumerate(shapes(which)):
        plan.parameter(f"t{k}", "fc_weight", shape)
    arena = Arena(plan.finalize(), device="cuda" if HAVE_GPU else "cpu")
    rng = np.random.default_rng(1)
    for series in "WG":
        span = plan.series_range(series)
        put(arena, span.base_offset, rng.standard_normal(span.size // 4, np.float32))
    seen = []
    pool = host_loops._pool()[0]
    for shape in (1, 2, 3):
        if HAVE_GPU:
            monkeypatch.setattr(launchers, "THREADS", 64 * shape)
        else:
            monkeypatch.setattr(host_loops, "_pool", lambda shape=shape: (pool, shape))
        bound = (
            ops.grad_norm.bind(arena, weights=True),
            ops.fold_norms.bind(arena, of="lars"),
            ops.total_norm.bind(arena),
        )
        if shape == 1:
            assert [check(each).difference for each in bound] == [None] * 3
        else:
            for each in bound:
                each()
        names = ("norm.partials", "norm.sums", "norm.totals")
        seen.append([arena.download(name).tobytes() for name in names])
    assert seen[0] == seen[1] == seen[2]


def test_the_references_are_right_to_a_few_ulps_of_float64():
    arena, gradient = one((300_001,), "cpu")
    rng = np.random.default_rng(3)
    values = (rng.standard_normal(300_001) * 10.0 ** rng.uniform(-12, 12, 300_001)).astype("f4")
    arena[gradient] = values
    launches = [ops.grad_norm.bind(arena), ops.fold_norms.bind(arena, of="gradient")]
    for each in launches:
        each.binding.op.kernel.reference(**each.binding.flags)(*each.arrays(), *each.integers)
    exact = math.fsum(float(x) ** 2 for x in values)
    assert ops.read_sums(arena, "gradient")[0][0] == pytest.approx(exact, rel=tolerance.SUM)


def test_a_sum_does_not_depend_on_where_a_tensor_lies():
    rng = np.random.default_rng(8)
    values = rng.standard_normal(5000, np.float32)
    found = []
    for before in ((), (7,), (3000, 1)):
        plan = MemoryPlan(PlanConfig("sgd"))
        for k, n in enumerate(before):
            plan.parameter(f"x{k}", "fc_weight", (n,))
        gradient = plan.parameter("w", "fc_weight", (5000,)).gradient
        arena = Arena(plan.finalize(), device="cpu")
        arena[gradient] = values
        ops.grad_norm(arena)
        ops.fold_norms(arena, of="gradient")
        found.append(ops.read_norms(arena)["w"])
    assert found[0] == found[1] == found[2]


def test_chunks_and_folds_by_hand():
    plan = MemoryPlan(PlanConfig("sgd"))
    for n in (2048 - 8, 2048 * 600 - 8, 1):
        plan.parameter(f"t{n}", "fc_weight", (n,))
    table = chunks_of(weight_segments(plan.finalize()).first)
    assert table.granules.size == 1 + 600 + 1 + 1
    assert table.granules[[0, 1, 2, 600, 601, 602]].tolist() == [0, 16, 32, 9600, 9616, 9617]
    assert table.folds.tolist() == [0, 1, 513, 601, 602]
    assert table.fold_of.tolist() == [0, 1, 3, 4]


BAD = {"fp16": (0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF), "bf16": (0x7F80, 0xFF80, 0x7FC0, 0x7F81)}
GOOD = {"fp16": (0x7BFF, 0xFBFF, 0x0001, 0x8000), "bf16": (0x7F7F, 0xFF7F, 0x0001, 0x8000)}


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_s10_s11_the_norm_pass_flags_what_the_check_flags(half):
    arena, gradient = one((3000,), "cpu", half)
    bound = ops.grad_norm.bind(arena, half_grad=True)
    for pattern in (*BAD[half], *GOOD[half]):
        for place in (0, 1500, 2999):
            bits = np.zeros(3000, np.uint16)
            bits[place] = pattern
            put(arena, gradient.offset, bits)
            arena.scalars.set(found_inf=0, first_nonfinite=2**31 - 1)
            bound()
            bad = pattern in BAD[half]
            assert arena.scalars.found_inf == bad
            assert arena.scalars.first_nonfinite == (place // 128 if bad else 2**31 - 1)


def test_the_norm_pass_names_the_first_bad_tensor(device):
    arena = Arena(small_plan("lars"), device=device)
    fill_random(arena)
    arena["conv1.weight#G"] = np.nan
    arena["conv2.weight#G"] = np.inf
    step = OptimizerStep(arena, lr=0.1)
    before = arena.download("fc.weight")
    step()
    assert arena.nonfinite_tensor() == "conv1.weight"
    assert step.status().skipped_steps == 1
    np.testing.assert_array_equal(arena.download("fc.weight"), before)


@pytest.mark.parametrize("optimizer", ["lars", "lamb", "adamw"])
def test_the_gradient_norms_are_there_after_a_step(optimizer, device):
    """Also LAMB's, whose second pass sums other things."""
    arena, gradient = one((3,), device, optimizer=optimizer)
    arena["w"], arena[gradient] = 7.0, np.array([2.0, 3.0, 6.0], np.float32)
    OptimizerStep(arena, norms=True, clear_grad=False)()
    assert ops.read_norms(arena) == {"w": 7.0}
    assert arena.scalars.grad_norm == 7.0


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_the_clip_is_torchs_and_costs_no_pass(scale, device):
    arena, gradient = one((2,), device)
    step = OptimizerStep(arena, lr=1.0, clip_norm=1.0, loss_scale=scale, clear_grad=False)
    arena[gradient] = np.array([3.0, 4.0], np.float32) * np.float32(scale)
    moved = []
    for clip in (1.0, 0.0, 10.0):
        arena["w"] = 0.0
        arena.scalars.clip_norm = clip
        step()
        assert arena.scalars.grad_norm == 5.0
        moved.append(-arena.download("w"))
    by = 1.0 / (5.0 + 1e-6)
    np.testing.assert_allclose(moved[0], [3 * by, 4 * by], rtol=tolerance.STEP)
    np.testing.assert_array_equal(moved[1], [3.0, 4.0])
    np.testing.assert_array_equal(moved[2], [3.0, 4.0])


def test_the_report_by_name(device):
    plan = small_plan(half="fp16")
    arena = Arena(plan, device=device)
    arena["fc.weight"] = 0.5
    arena["fc.weight#G16"] = np.float16(-2.0)
    bad = np.ones(127, np.float16)
    bad[[3, 126]] = np.inf, np.nan
    arena["conv2.weight#G16"] = bad
    arena["norm.bias#G"] = np.array([0, 0, 3e20, -4e20, 0], np.float32)
    rows = report(arena)
    assert list(rows) == [t.name for t in plan.weights()]
    fc, conv, norm = rows["fc.weight"], rows["conv2.weight"], rows["norm.bias"]
    assert (
        fc.weight_norm == pytest.approx(0.5 * 300**0.5, rel=tolerance.SUM) and fc.weight_max == 0.5
    )
    assert (fc.gradient_norm, fc.gradient_max) == (
        pytest.approx(2 * 300**0.5, rel=tolerance.SUM),
        2.0,
    )
    assert (conv.gradient_nonfinite, conv.gradient_max) == (2, 1.0)
    assert conv.gradient_norm == pytest.approx(125**0.5, rel=tolerance.SUM)
    assert norm.gradient_norm == pytest.approx(5e20, rel=tolerance.STORED)
    assert rows["empty.weight"].weight_norm == 0.0


def test_the_report_rides_in_a_graph(device):
    arena = Arena(small_plan("sgd"), device=device)
    step = OptimizerStep(arena, lr=0.5, clear_grad=False)
    made = Report(arena)
    graph = step.capture(after=made.launches)
    arena["one.weight#G"] = 1.0
    graph.replay()
    graph.replay()
    assert made.read()["one.weight"].weight_norm == 1.0
    assert made.read()["one.weight"].gradient_max == 1.0
