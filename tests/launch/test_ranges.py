"""Which ranges of a planned arena an op takes: of its type, and of tensors that its tables know."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from plan import GRANULE, DType, MemoryPlan, PlanConfig, PlanError, Range, Region
from plan.series import WEIGHT_KINDS
from rangeops import REGISTRY, Arena, elementwise_op, ops, report
from rangeops.kernels.spec import updated
from rangeops.verify import check, fill_random
from tests.helpers import SHAPES, host_bytes

STEP = 4 * GRANULE
GUARD = 1 << 16
TABLES = ("segments", "chunks")


@functools.cache
def plan_for(optimizer, half=None, ema=False, accumulate=False):
    """Return a plan with every kind of parameter, and other things between and behind them."""
    plan = MemoryPlan(PlanConfig(optimizer, half=half, ema=ema, accumulate=accumulate))
    for name, kind, shape in SHAPES:
        plan.parameter(name, kind, shape)
    plan.parameter("long.weight", "fc_weight", (5000,))
    plan.alloc_feature((3, 400), "x")
    plan.alloc_feature((900,), "y")
    plan.alloc_bn_stats(200, "bn")
    plan.alloc_inputs((8,), (8, 100), DType.FP32)
    plan.alloc_temp((700,), DType.FP32, "temp")
    plan.alloc_temp((700,), DType.INT32, "whole")
    return plan.finalize()


def guarded(plan):
    """Return a planned arena with guard bytes on both sides of its memory, and those bytes."""
    raw = np.full(plan.total_bytes + 2 * GUARD + 256, 0xA5, np.uint8)
    start = GUARD - raw.ctypes.data % 256
    memory = raw[start : start + plan.total_bytes]
    arena = Arena(plan, device="cpu", buffer=memory)
    fill_random(arena, 3)
    return arena, raw, slice(start, start + plan.total_bytes)


def reads_tables(op):
    """Return whether an op finds a tensor by its element."""
    names = dict(op.kernel.arguments)
    return any(table in names for table in TABLES) or "granule0" in op.kernel.integers


def test_a_range_of_feature_maps_is_no_range_of_weights():
    arena = Arena(plan_for("sgd"), device="cpu")
    x, y = (arena.plan.tensors[name] for name in "xy")
    before = host_bytes(arena)
    for p, g in [
        (Range(x.offset, 1024), Range(y.offset, 1024)),
        ("fc.weight", Range(y.offset, 3 * STEP)),
        ("fc.weight#G", "fc.weight"),
        (Range(x.offset, 0), Range(y.offset, 0)),
    ]:
        with pytest.raises(
            ValueError,
            match=r"^sgd: range [pg] got bytes \d+ .. \d+, expected whole granules of 512 bytes in"
            r"side the (weights|gradients) \(.*\), since .*; give the same tensors of each series, "
            r"or bind with lr=... or state= for any range$",
        ):
            ops.sgd.bind(arena, p=p, g=g)
    np.testing.assert_array_equal(host_bytes(arena), before)


def test_the_same_ranges_are_taken_with_a_state_of_their_own():
    arena = Arena(plan_for("sgd"), device="cpu")
    arena["x"], arena["y"] = 1.0, 1.0
    spans = {"p": arena.plan.tensors["x"].span, "g": arena.plan.tensors["y"].span}
    size = min(span.size for span in spans.values())
    spans = {name: Range(span.base_offset, size) for name, span in spans.items()}
    state = ops.sgd.bind(arena, **spans, lr=0.5).state
    ops.sgd(arena, **spans, lr=0.5)
    ops.sgd(arena, **spans, state=state)
    assert arena.download("x").reshape(-1)[:900].tolist() == [0.0] * 900


@pytest.mark.parametrize("part", [Range(16, STEP), Range(0, STEP - 16), Range(STEP // 2, STEP)])
def test_a_range_is_of_whole_granules(part):
    arena = Arena(plan_for("sgd"), device="cpu")
    spans = {}
    for name, series in (("p", "W"), ("g", "G")):
        base = arena.plan.series_range(series).base_offset
        spans[name] = Range(base + part.base_offset, part.size)
    with pytest.raises(
        ValueError, match="sgd: range p got bytes .*, expected whole granules of 51"
    ):
        ops.sgd(arena, **spans)


def spans_of(parameter, **changed):
    """Return the tensors of a parameter that AdamW moves by FP32 gradients, some replaced."""
    spans = {"p": parameter.weight, "g": parameter.gradient, "m": parameter.m, "v": parameter.v}
    return {name: tensor.span for name, tensor in spans.items()} | changed


def cut(span, first, granules):
    """Return some FP32 granules of a range."""
    return Range(span.base_offset + first * STEP, granules * STEP)


def test_all_ranges_are_of_the_same_tensors():
    plan = plan_for("adamw", half="fp16", accumulate=True)
    arena = Arena(plan, device="cpu")
    fc, one = plan.parameters["fc.weight"], plan.parameters["one.weight"]
    for other in ("m", "g"):
        spans = {name: cut(span, int(name == other), 1) for name, span in spans_of(fc).items()}
        with pytest.raises(
            ValueError,
            match=rf"adamw: range {other} got elements 768 .. 896 of the .*, expected 640 .. 768, "
            "those of range p; give the same tensors",
        ):
            ops.adamw(arena, **spans)
    with pytest.raises(
        ValueError, match="range h got elements 1152 .. 1280 of the half gradients, expected 640 .."
    ):
        ops.adamw(arena, **spans_of(fc, h=one.half_gradient))
    first_half = Range(fc.half_gradient.offset, STEP // 2)
    with pytest.raises(
        ValueError, match="range h got elements 640 .. 768 of the half gradients, expected 1152 .."
    ):
        ops.adamw(arena, **spans_of(one, h=first_half))
    ops.adamw(arena, **spans_of(one, h=one.half_gradient, a=one.half_copy))


def test_half_gradients_stand_for_those_that_a_plan_does_not_keep():
    """Without room to accumulate the FP32 gradients are those of biases and norms alone."""
    plan = plan_for("adamw", half="fp16", ema=True)
    arena = Arena(plan, device="cpu")
    fill_random(arena)
    split, whole = plan.series_range("W", "bias").size // 4, plan.series_range("W").size // 4
    for op, flags in (
        (ops.adamw, {"half_copy": True, "ema": True}),
        (ops.check_nan, {"clip": True}),
        (ops.tensor_stats, {}),
        (ops.grad_norm, {"weights": True}),
    ):
        launch = op.bind(arena, half_grad=True, **flags)
        assert launch.binding.elements == whole and launch.binding.half_start == split
        assert check(launch).difference is None
    weights = {o: plan.series_range(s, "weight") for o, s in zip("pmv", "WMV", strict=True)}
    halves = plan.series_range("G", "weight", half=True)
    for spans in ({"part": "weight", "half_grad": True}, {**weights, "h": halves}):
        launch = ops.adamw.bind(arena, **spans)
        assert "g" not in launch.binding.resolved and launch.binding.half_start == 0
        assert launch.binding.first_granule == split // GRANULE
        assert check(launch).difference is None
    over = {o: Range(plan.series_range(s).base_offset + 4 * split - STEP, 3 * STEP)
            for o, s in zip("pmv", "WMV", strict=True)}  # fmt: skip
    launch = ops.adamw.bind(arena, **over, h=Range(halves.base_offset, STEP))
    assert launch.binding.resolved["g"].span.size == STEP
    assert check(launch).difference is None
    only = ops.check_nan.bind(arena, h=Range(halves.base_offset + STEP, STEP))
    assert only.binding.first_granule == split // GRANULE + 2 and check(only).difference is None
    assert ops.sgd.bind(Arena(plan_for("sgd", "fp16"), device="cpu"), part="bias").count == split
    with pytest.raises(
        PlanError, match="adamw: range g is region G_FC_WEIGHT, which the plan disab"
    ):
        ops.adamw(arena)


def test_a_missing_gradient_is_no_place_to_read():
    """Of a raw range whose half gradients begin later the FP32 ones have to be given."""
    data = np.zeros(8192, np.uint8)
    with pytest.raises(
        TypeError, match="sgd: range g is missing for 128 elements before those of h; give g=Range"
    ):
        ops.sgd(data, p=Range(0, 1024), h=Range(2048, 256), lr=0.5)
    ops.sgd(data, p=Range(0, 1024), h=Range(2048, 512), lr=0.5)


def test_a_sharded_step_gives_the_same_elements_of_every_series():
    from rangeops.ranks.shard import Shard

    for half in (None, "fp16"):
        plan = plan_for("adamw", half, ema=True)
        arena = Arena(plan, device="cpu")
        for rank in range(3):
            shard = Shard(plan, rank, 3)
            spans = {name: shard.mine(name.upper()) for name in "mve"} | {"p": shard.mine("W")}
            if half:
                spans |= {"h": shard.mine("G", True), "a": shard.mine("A")}
            else:
                spans["g"] = shard.mine("G")
            launch = ops.adamw.bind(arena, **spans)
            first = shard.own[0] + (plan.series_range("W", "bias").size // 4 if half else 0)
            assert launch.binding.first_granule == first // GRANULE


def test_what_only_reads_may_read_any_series():
    plan = plan_for("adamw", ema=True)
    arena = Arena(plan, device="cpu")
    fill_random(arena)
    for series in "WEGMV":
        launch = ops.tensor_stats.bind(arena, plan.series_range(series))
        assert launch.binding.first_granule == 0
        assert check(launch).difference is None
    rows = report(arena)
    assert rows["fc.weight"].weight_norm == pytest.approx(
        float(np.linalg.norm(arena.download("fc.weight").astype(np.float64)))
    )
    with pytest.raises(ValueError, match="tensor_stats: range g holds .* elements, expected"):
        ops.tensor_stats(arena, plan.tensors["x"])


def test_an_op_without_a_series_of_its_own_finds_its_tensors_where_it_lies():
    op = elementwise_op(
        "gated_of_tests", formula="x = 2*x", operands=(updated("x", "f4"),), rule=double_rule,
        reference=double_rule, gated=True,
    )  # fmt: skip
    try:
        plan = plan_for("sgd")
        arena = Arena(plan, device="cpu")
        ops.begin_step(arena)
        for name in ("fc.weight", "long.weight#G"):
            launch = op.bind(arena, name)
            tensor = plan.tensors[name]
            base = plan.series_range(tensor.region.series).base_offset
            assert launch.binding.first_granule == (tensor.offset - base) // STEP
            assert check(launch).difference is None
        for wrong in ("x", "bn.prev_mean", Range(plan.tensors["fc.weight"].offset + 16, STEP)):
            with pytest.raises(ValueError, match="range x got bytes .*, expected whole granules"):
                op.bind(arena, wrong)
    finally:
        del REGISTRY["gated_of_tests"]


def double_rule(x):
    """Return 2 * x."""
    return x + x


TYPED = [
    (ops.sgd, {"p": "whole", "g": "fc.weight#G"}, "p got whole, which holds int32, expected fp32"),
    (
        ops.average,
        {"x": Region.S_SCALAR_INT32},
        "x got S_SCALAR_INT32, which holds int32, expected",
    ),
    (ops.average, {"x": Region.A_FC_WEIGHT}, "x got A_FC_WEIGHT, which holds half, expected fp32"),
    (
        ops.average_half,
        {"x": Region.W_FC_WEIGHT},
        "x got W_FC_WEIGHT, which holds fp32, expected ha",
    ),
    (ops.average, {"x": Region.I_A_LABEL}, "x got I_A_LABEL, which holds int32, expected fp32"),
]


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize(("op", "spans", "message"), TYPED, ids=range(len(TYPED)))
def test_bytes_are_of_the_type_that_lies_there_however_they_are_named(op, spans, message, as_bytes):
    plan = plan_for("sgd", half="fp16", accumulate=True)
    arena = Arena(plan, device="cpu")
    before = host_bytes(arena)
    if as_bytes:
        spans = {name: plan.resolve(span) for name, span in spans.items()}
        message = message.replace("whole,", "T_TEMP_INT32,")
    with pytest.raises(
        ValueError, match=f"{op.name}: range {message}.*; give a range of that type"
    ):
        op(arena, **spans)
    np.testing.assert_array_equal(host_bytes(arena), before)
    for span in spans.values():
        ops.clear.bind(arena, span)


def test_bytes_that_reach_over_a_border_are_of_both_types():
    plan = plan_for("sgd", half="fp16", ema=True)
    arena = Arena(plan, device="cpu")
    border = plan.range(Region.E_FC_WEIGHT_FP16).base_offset
    ops.average.bind(arena, x=Range(border - 512, 512))
    with pytest.raises(ValueError, match="x got E_FC_WEIGHT_FP16, which holds half, expected fp32"):
        ops.average(arena, x=Range(border - 512, 512 + 16))
    ops.average.bind(arena, x=Range(border, 0))


def test_bytes_of_a_region_of_the_callers_types_are_of_its_tensors():
    plan = MemoryPlan(PlanConfig("none"))
    made = [
        plan.alloc(Region.I_A_DATA, 300, name, dtype)
        for name, dtype in (("a", DType.FP32), ("b", DType.INT8), ("c", DType.FP32))
    ]
    a, b, c = made
    arena = Arena(plan.finalize(), device="cpu")
    for good in (a.span, c.span, Range(a.span.end - 256, 256), a, "c"):
        ops.average.bind(arena, x=good)
    for bad in (b.span, Range(a.offset, c.span.end - a.offset), Range(a.span.end - 16, 32)):
        with pytest.raises(ValueError, match="x got b, which holds int8, expected fp32; give a ra"):
            ops.average.bind(arena, x=bad)
    with pytest.raises(ValueError, match="x got I_A_DATA, which holds int8, expected fp32; give a"):
        ops.average.bind(arena, x=Region.I_A_DATA)
    assert plan.holds(Region.I_A_DATA) == (("I_A_DATA", DType.FP32), ("I_A_DATA", DType.INT8))


def test_types_are_found_as_by_looking_at_every_tensor(rng):
    plan = plan_for("adamw", half="bf16", ema=True)
    for _ in range(2000):
        offset, size = (int(n) for n in rng.integers(-512, plan.total_bytes + 512, 2))
        span = Range(offset, size)
        held = [t for t in plan if t.offset < span.end and t.span.end > span.base_offset]
        assert plan.tensors_at(span) == tuple(held)
        if size > 0:
            assert {kind for _, kind in plan.types_at(span)} == {t.dtype for t in held}
            assert {name for name, _ in plan.types_at(span)} <= (
                {t.region.name for t in held} | {t.name for t in held}
            )
        else:
            assert plan.types_at(span) == ()


def test_types_are_found_without_a_walk_over_all_tensors(monkeypatch):
    plan = plan_for("adamw", half="bf16", ema=True)
    arena = Arena(plan, device="cpu")
    spans = [Range(0, plan.total_bytes), plan.tensors["x"].span, Range(plan.total_bytes - 512, 512)]

    def walk(self):
        raise AssertionError("the plan was walked over")

    monkeypatch.setattr(MemoryPlan, "__iter__", walk)
    for span in spans:
        assert plan.types_at(span) and plan.tensors_at(span)
        ops.clear.bind(arena, span)


def test_a_descriptor_of_another_plan_is_refused():
    plan = plan_for("sgd")
    arena = Arena(plan, device="cpu")
    other = MemoryPlan(PlanConfig("sgd"))
    w = other.parameter("fc.weight", "fc_weight", (9,)).weight
    with pytest.raises(PlanError, match="sgd: range p: got <DTensor fc.weight: .* of another plan"):
        ops.sgd(arena, p=w)
    other.finalize()
    with pytest.raises(PlanError, match="sgd: range p: got <DTensor fc.weight: .* of another plan"):
        ops.sgd(arena, p=w)
    equal = plan_for.__wrapped__("sgd").parameters["fc.weight"]
    ops.sgd(arena, p=equal.weight, g=equal.gradient)


def identity(plan, operand, span):
    """Return which granules of which parameters a range is; None if of something else."""
    half = operand.element == "half"
    found = []
    for tensor in plan.tensors_at(span):
        if tensor.region.series != operand.series or tensor.dtype.is_half != half:
            return None
        step = GRANULE * (2 if half else 4)
        for k in range(tensor.slot_bytes // step):
            at = tensor.offset + k * step
            if span.base_offset <= at and at + step <= span.end:
                found.append((tensor.name.partition("#")[0], k))
            elif span.base_offset < at + step and at < span.end:
                return None
    return found


def granules_of(weight):
    """Return all granules of a parameter."""
    return [(weight.name, k) for k in range(weight.slot_bytes // STEP)]


def stood_for(plan, active, operand):
    """Return whether a plan has of an operand biases alone, half ranges standing for the rest."""
    partner = any(o.instead_of == operand.name for o in active)
    return partner and not plan.series_range(operand.series, "weight").size


def expected(op, plan, active, spans):
    """Return whether ranges of an op are of its type, and of the same tensors where that counts."""
    for operand in active:
        if operand.name in spans and operand.element != "u1":
            kinds = {kind.element for _, kind in plan.types_at(spans[operand.name])}
            if kinds != {operand.element}:
                return False
    if not reads_tables(op):
        numel = [(spans[o.name].size // o.itemsize, o.from_half_start) for o in active]
        tails = [n for n, tail in numel if tail]
        fit = all(n <= numel[0][0] and (numel[0][0] - n) % GRANULE == 0 for n in tails)
        return fit and all(n == numel[0][0] for n, tail in numel if not tail)
    mine = {o.name: identity(plan, o, spans[o.name]) for o in active if o.name in spans}
    if None in mine.values():
        return False
    plain = [o for o in active if not o.from_half_start and not stood_for(plan, active, o)]
    whole = mine[plain[0].name] if plain else [*itertools.chain(*mine.values())]
    every = [pair for weight in plan.weights() for pair in granules_of(weight)]
    if whole and every[every.index(whole[0]) :][: len(whole)] != whole:
        return False
    kind_of = {name: parameter.kind for name, parameter in plan.parameters.items()}
    for operand in active:
        want = whole
        if operand.from_half_start:
            want = [(name, k) for name, k in whole if kind_of[name] in WEIGHT_KINDS]
        elif stood_for(plan, active, operand):
            want = [(name, k) for name, k in whole if kind_of[name] not in WEIGHT_KINDS]
        if mine.get(operand.name, want) != want:
            return False
    return True


def some_spans(plan, active, rng):
    """Return a range for each operand: of the same tensors, nearly so, or of anything."""
    whole = plan.series_range("W").size // STEP
    bias = plan.series_range("W", "bias").size // STEP
    a, b = sorted(int(n) for n in rng.choice(whole + 1, 2, replace=False))
    spans, tensors = {}, list(plan)
    for operand in active:
        step = GRANULE * operand.itemsize
        if operand.series and rng.random() < 0.93:
            half = operand.element == "half"
            base = plan.series_range(operand.series, "all", half).base_offset
            first, last = (max(0, a - bias), max(0, b - bias)) if half else (a, b)
            if stood_for(plan, active, operand):
                first, last = min(a, bias), min(b, bias)
            first, last = (n + int(rng.random() < 0.03) for n in (first, last))
            if first == last and stood_for(plan, active, operand):
                continue
            spans[operand.name] = Range(base + first * step, (last - first) * step)
        elif rng.random() < 0.5:
            spans[operand.name] = tensors[rng.integers(len(tensors))].span
        else:
            at = 16 * int(rng.integers(0, plan.total_bytes // 16))
            size = int(rng.choice([step, 5 * step, 40 * step, (b - a) * step, 20]))
            spans[operand.name] = Range(at, min(size, plan.total_bytes - at) // 4 * 4)
    return spans


CONFIGS = [("adamw", None, True, False), ("adamw", "fp16", True, False),
           ("adamw", "fp16", True, True), ("lamb", "bf16", True, False),
           ("momentum", None, False, False), ("lion", "fp16", False, True)]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_any_range_is_bound_inside_the_tables_or_refused(config, rng):
    optimizer, half, *_ = config
    plan = plan_for(*config)
    arena, raw, inside = guarded(plan)
    before = raw.copy()
    ops.begin_step(arena)
    granules = plan.series_range("W").size // STEP
    names = ("step.segments", "norm.chunks", "norm.folds", "norm.fold_of_tensor")
    tables = {name: arena.download(name) for name in names}
    mine = [op for op in REGISTRY.values() if op.operands and op.kernel.count == "n"
            and (op.settings is None or op.name == optimizer)]  # fmt: skip
    bound = 0
    for _ in range(1200):
        op = mine[rng.integers(len(mine))]
        flags = [f for f in op.variants() if f.get("half") in (None, half)]
        chosen = flags[rng.integers(len(flags))] if flags else None
        if chosen is None:
            continue
        active = [o for o in op.operands if not o.flag or chosen[o.flag]]
        spans = some_spans(plan, active, rng)
        given = {name: value for name, value in chosen.items() if name != "half"}
        if any(span.size == 0 for span in spans.values()):
            continue
        try:
            launch = op.bind(arena, **spans, **given)
        except (ValueError, TypeError, PlanError) as error:
            assert not expected(op, plan, active, spans) or "share" in str(error), error
            continue
        assert expected(op, plan, active, spans), (op, spans)
        binding = launch.binding
        bound += 1
        if reads_tables(op):
            last = binding.first_granule + -(-binding.elements // GRANULE)
            assert 0 <= binding.first_granule < last <= granules
        for place in binding.arguments:
            if place.span is not None:
                assert 0 <= place.span.base_offset <= place.span.end <= plan.total_bytes
                place.view()
        if all(o.element != "u1" for o in active):
            launch()
    assert bound > 200
    assert (raw[: inside.start] == before[: inside.start]).all()
    assert (raw[inside.stop :] == before[inside.stop :]).all()
    for name, values in tables.items():
        np.testing.assert_array_equal(arena.download(name), values)


def test_empty_ranges_launch_nothing_and_look_at_nothing():
    plan = plan_for("adamw", ema=True)
    arena = Arena(plan, device="cpu")
    before = host_bytes(arena)
    base = {name: plan.series_range(s).base_offset for name, s in zip("pgmv", "WGMV", strict=True)}
    end = plan.series_range("W").size
    for at in (0, STEP, end):
        launch = ops.adamw.bind(arena, **{name: Range(b + at, 0) for name, b in base.items()})
        launch()
        assert 0 <= launch.binding.first_granule <= end // STEP
        assert all(view is not None for view in launch.arrays())
    np.testing.assert_array_equal(host_bytes(arena), before)
