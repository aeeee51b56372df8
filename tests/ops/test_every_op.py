"""The registry walk: what every op and every option has to keep, wherever it runs.

On "cuda" every variant runs (in the simulator when there is no GPU).  On the CPU, where a loop
takes most of a second to compile, each op runs alone and with everything it can fuse.
"""

from __future__ import annotations

import numpy as np
import pytest

from plan import Range
from plan.scalars import INT32_SCALARS, int32_index
from rangeops import REGISTRY, Arena
from rangeops.kernels import build
from rangeops.launch.resolve import WHOLE_SERIES
from rangeops.verify import check, fill_random, planned_variants
from tests.helpers import HAVE_GPU, get, host_bytes, put, raw_arena, small_plan
from tests.kernels.variants import chosen

OPTIMIZERS = {"sgd": "sgd", "momentum": "momentum", "nesterov": "nesterov", "trust_ratio": "lamb"}


def plan_for(op, half="fp16"):
    return small_plan(OPTIMIZERS.get(op.name, "adamw"), half=half or "fp16", ema=True)


def on_ranges(op):
    """Whether an op works on any ranges, a plan or not."""
    return op.operands and op.kernel.count not in WHOLE_SERIES


def label(op, flags):
    on = [k if v is True else str(v) for k, v in flags.items() if v and v != "l2"]
    return "-".join([op.name, *on])


def cases():
    for op in REGISTRY.values():
        for flags in op.variants():
            on = sum(v is True for v in flags.values())
            few = on == 0 or on == sum(True in values for values in op.flags.values())
            for where in ("cuda", "cpu"):
                if where == "cuda" or few:
                    # One process compiles a loop for all the tests of it.
                    together = [pytest.mark.xdist_group(op.name)] if where == "cpu" else []
                    name = f"{label(op, flags)}-{where}"
                    yield few, pytest.param(op, flags, where, id=name, marks=together)


def bf16(case):
    return case.values[1].get("half") == "bf16"


CASES = [case for few, case in cases() if few or chosen(*case.values[:2])]
"""Without a GPU those that differ, in the slow simulator; see ``tests.kernels.variants``."""

FEWER = [case for few, case in cases() if HAVE_GPU or (few and not bf16(case))]
"""In the slow simulator, each op alone and with everything it can fuse."""

OBEYING = [c for c in FEWER if c.values[0].hyper and c.values[0].name != "check_nan"]
"""The updates and the EMA: what a set flag holds back."""


def ready(op, flags, device):
    """Return a filled arena with coefficients at step 2, and the launch of the variant."""
    plan = plan_for(op, flags.get("half"))
    arena = Arena(plan, device=device)
    wanted = [
        a
        for a, f in zip(planned_variants(op, plan), variants_in(op, plan), strict=True)
        if f == flags
    ]
    fill_random(arena, 3)
    arena.scalars.set(weight_decay=0.01, ema_decay=0.9, clip_value=10.0, step=1, batch_size=32)
    begin = REGISTRY["begin_step"].bind(arena)
    begin()
    return arena, op.bind(arena, **wanted[0])


def variants_in(op, plan):
    half = plan.config.half
    return [f for f in op.variants() if f.get("half") in (None, half)]


@pytest.mark.parametrize(("op", "flags", "device"), CASES)
def test_equals_its_reference_and_touches_nothing_else(op, flags, device):
    arena, launch = ready(op, flags, device)
    before = host_bytes(arena)
    verdict = check(launch)
    assert verdict.difference is None
    after = host_bytes(arena)
    allowed = np.zeros(arena.nbytes, bool)
    for name, _ in op.kernel.arguments:
        _, span = launch.binding.locate(name)
        role = launch.binding.resolved[name].operand.role if name in launch.binding.resolved else "state"
        if span is not None and role != "read":
            allowed[span.base_offset : span.end] = True
    assert not (before != after)[~allowed].any()
    for tensor in arena.plan:
        if not op.operands or tensor.region.series not in "WGMVEA":
            continue
        pad = slice(tensor.offset + tensor.nbytes, tensor.offset + tensor.slot_bytes)
        assert not after[pad].any(), f"padding of {tensor.name}"


@pytest.mark.parametrize(("op", "flags", "device"), FEWER)
def test_twice_from_one_state_gives_the_same_bits(op, flags, device):
    arena, launch = ready(op, flags, device)
    start = host_bytes(arena)
    launch()
    first = host_bytes(arena)
    put(arena, 0, start)
    compiled = built()
    again = op.bind(arena, **spans_of(launch))
    again()
    assert built() == compiled, "the second binding compiled something"
    np.testing.assert_array_equal(host_bytes(arena), first)


def spans_of(launch):
    flags = {k: v for k, v in launch.binding.flags.items() if k != "half"}
    return flags | {name: b.span for name, b in launch.binding.resolved.items()}


def built():
    caches = (build.gpu_kernel, build.simulated_kernel, build.cpu_loop, build.ltoir)
    return [c.cache_info().misses for c in caches]


@pytest.mark.parametrize(("op", "flags", "device"), OBEYING)
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
            spans = [launch.binding.resolved[n].span for n in ("g", "h") if n in launch.binding.resolved]
            for span in spans:
                before[span.base_offset : span.end] = after[span.base_offset : span.end]
            last = spans[-1]
            assert not after[last.base_offset : last.end].any(), "gradients are cleared still"
        np.testing.assert_array_equal(after, before)


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
@pytest.mark.parametrize("name", [n for n, op in REGISTRY.items() if on_ranges(op)])
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


@pytest.mark.parametrize("name", [n for n, op in REGISTRY.items() if op.elementwise])
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
    for op in REGISTRY.values():
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
