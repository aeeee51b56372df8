"""The registry walk: what every op and every option has to keep, wherever it runs.

On "cuda" every kernel runs (in the simulator when there is no GPU), ops that share one taking
turns.  On the CPU those loops run that are also built for GPUs, and every op alone and with
everything it can fuse.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from plan import Range
from plan.scalars import INT32_SCALARS, int32_index
from plan.scratch import FIXED, RESTS, TRAINED
from rangeops import REGISTRY, Arena
from rangeops.kernels import build
from rangeops.launch.resolve import WHOLE_SERIES
from rangeops.verify import check, fill_random, planned_variants
from tests.helpers import HAVE_GPU, get, host_bytes, put, raw_arena, small_plan
from tests.kernels.variants import OPS, built, extreme, kernels
from tests.ops.changes import count_steps, several_groups

KERNELS = {(op.kernel.name, repr(sorted(flags.items()))): op.name for op, flags in kernels()}


def plan_for(op, flags):
    """Return the plan of the optimizer that an op is or belongs to, with halves and EMA."""
    optimizer = op.name if op.settings is not None else flags.get("kind", "adamw")
    half = flags.get("half") or "fp16"
    full = not flags.get("half_grad")
    return planned("lamb" if op.name == "lamb_moments" else optimizer, half, full)


@functools.cache
def planned(optimizer, half, full):
    """Return a plan; ``full``: with FP32 gradients of weights beside half ones."""
    return small_plan(optimizer, half=half, ema=True, accumulate=full)


def on_ranges(op):
    """Whether an op works on any ranges, a plan or not."""
    return op.operands and op.kernel.count not in WHOLE_SERIES


def label(op, flags):
    on = [k if v is True else str(v) for k, v in flags.items() if v]
    return "-".join([op.name, *on])


def first(op, flags):
    """Return whether an op is the first one with this kernel."""
    return KERNELS[op.kernel.name, repr(sorted(flags.items()))] == op.name


def cases(wanted):
    """Return the variants for which ``wanted(op, flags, where)`` is true, as test parameters."""
    found = []
    for op in OPS:
        for flags in op.variants():
            for where in ("cuda", "cpu"):
                if wanted(op, flags, where):
                    # One process compiles a loop for all the tests of it.
                    together = [pytest.mark.xdist_group(op.kernel.name)] if where == "cpu" else []
                    name = f"{label(op, flags)}-{where}"
                    found.append(pytest.param(op, flags, where, id=name, marks=together))
    return found


def every(op, flags, where):
    if where == "cuda":
        return HAVE_GPU or first(op, flags)
    return extreme(op, flags) or (first(op, flags) and built(op, flags))


def fewer(op, flags, where):
    """In the slow simulator, each kernel alone and with everything it can fuse."""
    if HAVE_GPU:
        return every(op, flags, where)
    return extreme(op, flags) and flags.get("half") != "bf16" and first(op, flags)


def obeying(op, flags, where):
    """Whether it is an update or the EMA, which a set flag holds back."""
    return fewer(op, flags, where) and op.hyper and op.name != "check_nan"


LIVE = (TRAINED, RESTS, FIXED, TRAINED, TRAINED, RESTS, FIXED, TRAINED)
"""The live words of a small plan's tensors: of every kind, of FP32 and of half gradients."""


@functools.cache
def filled(plan):
    """Return the bytes of an arena with random contents and rows of step 2 that all differ."""
    arena = Arena(plan, device="cpu")
    fill_random(arena, 3)
    arena.scalars.set(weight_decay=0.01, ema_decay=0.9, clip_value=10.0, step=1, batch_size=32)
    several_groups(arena)
    count_steps(arena)
    arena["step.live"] = np.array(LIVE, np.int32)
    REGISTRY["begin_step"](arena)
    return host_bytes(arena)


def ready(op, flags, device):
    """Return a filled arena, and the launch of the variant."""
    plan = plan_for(op, flags)
    arena = Arena(plan, device=device)
    put(arena, 0, filled(plan))
    (arguments,) = (
        a
        for a in planned_variants(op, plan)
        if all(a.get(name) == value for name, value in flags.items() if name != "half")
    )
    return arena, op.bind(arena, **arguments)


def test_every_op_runs_on_both_kinds_of_device():
    ran = {where: {c.values[0].kernel for c in cases(every) if c.values[2] == where} for where in
           ("cuda", "cpu")}  # fmt: skip
    assert ran["cuda"] == ran["cpu"] == {op.kernel for op in OPS}
    assert {c.values[0] for c in cases(every)} == set(OPS)


@pytest.mark.parametrize(("op", "flags", "device"), cases(every))
def test_equals_its_reference_and_touches_nothing_else(op, flags, device):
    arena, launch = ready(op, flags, device)
    before = host_bytes(arena)
    verdict = check(launch)
    assert verdict.difference is None
    after = host_bytes(arena)
    allowed = np.zeros(arena.nbytes, bool)
    resolved = launch.binding.resolved
    for name, _ in op.kernel.arguments:
        _, span = launch.binding.locate(name)
        role = resolved[name].operand.role if name in resolved else "state"
        if span is not None and role != "read":
            allowed[span.base_offset : span.end] = True
    assert not (before != after)[~allowed].any()
    for tensor in arena.plan:
        if not op.operands or tensor.region.series not in "WGMVEA":
            continue
        pad = slice(tensor.offset + tensor.nbytes, tensor.offset + tensor.slot_bytes)
        assert not after[pad].any(), f"padding of {tensor.name}"


@pytest.mark.parametrize(("op", "flags", "device"), cases(fewer))
def test_twice_from_one_state_gives_the_same_bits(op, flags, device):
    arena, launch = ready(op, flags, device)
    start = host_bytes(arena)
    launch()
    once = host_bytes(arena)
    put(arena, 0, start)
    compiled = compilations()
    again = op.bind(arena, **spans_of(launch))
    again()
    assert compilations() == compiled, "the second binding compiled something"
    np.testing.assert_array_equal(host_bytes(arena), once)


def spans_of(launch):
    flags = {k: v for k, v in launch.binding.flags.items() if k != "half"}
    return flags | {name: b.span for name, b in launch.binding.resolved.items()}


def compilations():
    caches = (build.gpu_kernel, build.simulated_kernel, build.cpu_loop, build.ltoir)
    return [c.cache_info().misses for c in caches]


@pytest.mark.parametrize(("op", "flags", "device"), cases(obeying))
def test_a_set_flag_changes_no_byte(op, flags, device):
    arena, launch = ready(op, flags, device)
    # Either word holds an update back; both are looked at on the CPU, one on the slow simulator.
    for flag in ("found_inf", "skip_step") if device == "cpu" else ("skip_step",):
        arena.scalars.set(**{"found_inf": 0, "skip_step": 0, flag: 1})
        before = host_bytes(arena)
        launch()
        after = host_bytes(arena)
        if "partials" in dict(op.kernel.arguments):  # a pass that sums writes sums, of nothing then
            _, span = launch.binding.locate("partials")
            before[span.base_offset : span.end] = after[span.base_offset : span.end]
        if flags.get("clear_grad"):
            clear(launch.binding, before)
        np.testing.assert_array_equal(after, before)


def clear(binding, memory):
    """Clear the gradients that an update reads of all tensors but the fixed ones."""
    plan, resolved = binding.plan, binding.resolved
    fixed = {t.name for t, word in zip(plan.weights(), LIVE, strict=True) if word == FIXED}
    spans = [resolved["g"].span]
    if "h" in resolved:
        full = Range(resolved["g"].span.base_offset, 4 * binding.half_start)
        spans = [full, resolved["h"].span]
    for t in plan:
        inside = any(span.base_offset <= t.offset < span.end for span in spans)
        if inside and t.name.partition("#")[0] not in fixed:
            memory[t.offset : t.offset + t.nbytes] = 0


SIZES = (0, 1, 127, 128, 129)


def raw_layout(op, n):
    """Return the spans of an op's data ranges for n elements, 1 KiB of guard between them."""
    spans, cursor = {}, 1024
    for operand in op.operands:
        size = n * {"u1": 1, "half": 2}.get(operand.element, 4)
        spans[operand.name] = Range(cursor, size)
        cursor += -(-size // 256) * 256 + 1024
    return spans, cursor


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", [op.name for op in OPS if on_ranges(op)])
def test_raw_ranges_of_any_size_between_guards(name, n, device, rng):
    op = REGISTRY[name]
    spans, total = raw_layout(op, n)
    arena = raw_arena(total, device, 0xA5)
    operands = [o for o in op.operands if not o.flag]
    for operand in operands:
        if operand.element == "f4":
            put(arena, spans[operand.name].base_offset, np.abs(rng.standard_normal(n, np.float32)))
        elif operand.element == "half":
            put(arena, spans[operand.name].base_offset, rng.integers(0, 0x7C00, n, np.uint16))
    hyper = {"lr": 0.1, "weight_decay": 0.01} if "lr" in op.hyper else {}
    launch = op.bind(arena, **{o.name: spans[o.name] for o in operands}, **hyper)
    before = host_bytes(arena)
    assert check(launch).difference is None
    after = host_bytes(arena)
    for operand in operands:
        span = spans[operand.name]
        before[span.base_offset : span.end] = after[span.base_offset : span.end]
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("name", [op.name for op in OPS if op.elementwise])
def test_ten_million_elements(name, rng):
    """At size: on the GPU where there is one, else through the CPU loops."""
    op = REGISTRY[name]
    n = 10_000_003
    spans, total = raw_layout(op, n)
    arena = raw_arena(total, "cuda" if HAVE_GPU else "cpu", 0xA5)
    operands = [o for o in op.operands if not o.flag]
    values = (rng.standard_normal(n, np.float32) * 10.0 ** rng.uniform(-12, 3, n)).astype("f4")
    for k, operand in enumerate(operands):
        turned = np.roll(values, 1000 * k)
        if operand.element == "f4":
            data = np.abs(turned) if operand.name == "v" else turned
        elif operand.element == "half":
            data = rng.integers(0, 2**16, n, np.uint16)
        else:
            data = rng.integers(0, 256, n, np.uint8)
        put(arena, spans[operand.name].base_offset, data)
    hyper = {"lr": 0.1, "weight_decay": 0.01} if "lr" in op.hyper else {}
    launch = op.bind(arena, **{o.name: spans[o.name] for o in operands}, **hyper)
    assert launch.count == n
    assert check(launch).difference is None


def test_every_op_states_its_bytes_and_origin():
    for op in OPS:
        assert op.origin and op.formula
        for flags in op.variants():
            elements = {"u1": 1, "half": 2, "f4": 4}
            active = [o for o in op.operands if not o.flag or flags[o.flag]]
            if not op.elementwise or op.name in ("check_nan",) or "half_grad" in flags:
                continue
            moved = sum(elements[o.element] * (2 if o.role == "updated" else 1) for o in active)
            if op.name == "sema_switch" and not flags["swap"]:
                moved -= 8
            assert op.bytes_per_element(flags) == moved, (op.name, flags)


def test_int32_scalars_fit_their_region():
    arena = Arena(small_plan(), device="cpu")
    for name, value in INT32_SCALARS.items():
        base = arena.plan.range(59).base_offset
        assert get(arena, base + 4 * int32_index(name), 1, "i4")[0] == value
