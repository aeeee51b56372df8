"""Failures that others met: sizes, offsets, types (S01 to S05)."""

from __future__ import annotations

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig, PlanError, Range
from rangeops import REGISTRY, Arena, ops
from rangeops.launch.launchers import MAX_BLOCKS, THREADS, grid
from tests.helpers import get, host_bytes, put, raw_arena, small_plan
from tests.ops.test_every_op import on_ranges


@pytest.mark.parametrize("n", [2**31 - 1, 2**31, 2**32 - 128, 2**32, 2**32 + 128, 2**33])
@pytest.mark.parametrize("per_thread", [1, 4, 8, 64])
def test_s01_grid_covers_sizes_beyond_32_bits(n, per_thread):
    blocks = grid(n, per_thread)
    assert (blocks - 1) * per_thread * THREADS < n <= blocks * per_thread * THREADS
    assert 0 < blocks <= MAX_BLOCKS


def test_s01_too_many_blocks_are_refused():
    with pytest.raises(ValueError, match="blocks, expected at most 2147483647; split"):
        grid(2**40, 1)


@pytest.mark.gpu
def test_s01_clear_beyond_4_gib_ends_and_clears_every_byte():
    import cupy

    n = 2**32 + 128
    memory = cupy.full(n + 256, 0xAB, cupy.uint8)
    ops.clear(Arena.wrap(memory), Range(0, n))
    assert not memory[:n].any()
    assert (memory[n:] == 0xAB).all()


INTEGERS = (int, np.int32, np.int64, np.uint32, np.uint64, np.uint16)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", ["clear", "copy", "sgd", "ema", "check_nan", "cast_fp32_to_fp16"])
def test_s02_s03_any_integer_type_gives_the_same_launch(name, kind, device):
    op = REGISTRY[name]
    arena = raw_arena(8192, device)
    operands = [o for o in op.operands if not o.flag]
    spans = {}
    for k, o in enumerate(operands):
        size = 512 if o.element == "half" else 1024
        spans[o.name] = Range(kind(256 + 2048 * k), kind(size))
    hyper = {"lr": 0.1} if "lr" in op.hyper else {}
    launch = op.bind(arena, **spans, **hyper)
    bound = launch.binding.resolved[operands[0].name].span
    assert bound == (256, spans[operands[0].name].size)
    assert all(type(x) is int for x in (*bound, launch.count, launch.nbytes, *launch.integers))
    launch()


def test_s03_offsets_of_a_uint64_table():
    table = np.array([[256, 1024], [2**53 + 1, 4]], np.uint64)
    arena = raw_arena(4096, "cpu", 0xAB)
    ops.clear(arena, table[0])
    assert not host_bytes(arena)[256:1280].any()
    with pytest.raises(ValueError, match="9007199254740993 .. 9007199254740997, the arena has"):
        ops.clear(arena, table[1])


def test_s02_a_plan_above_the_memory_is_refused_with_both_numbers():
    plan = MemoryPlan(PlanConfig("none"))
    plan.parameter("w", "fc_weight", (2**48,))
    with pytest.raises(PlanError, match=f"needs {plan.finalize().total_bytes} bytes, .* has"):
        Arena(plan, device="cpu")


def test_s04_an_empty_tensor_does_not_stop_its_neighbours(device):
    plan = MemoryPlan(PlanConfig("sgd"))
    full = plan.parameter("full", "fc_weight", (5,))
    plan.parameter("empty", "fc_weight", (0,))
    arena = Arena(plan.finalize(), device=device)
    arena[full.weight], arena[full.gradient] = 1.0, 1.0
    arena.scalars.lr = 0.1
    ops.check_nan(arena)
    ops.begin_step(arena)
    ops.sgd(arena)
    np.testing.assert_array_equal(
        arena.download("full"), np.full(5, np.float32(1) - np.float32(0.1))
    )
    assert arena.scalars.found_inf == arena.scalars.skip_step == 0


@pytest.mark.parametrize("place", ["start", "middle", "end"])
@pytest.mark.parametrize("name", [n for n, op in REGISTRY.items() if on_ranges(op)])
def test_s04_size_zero_launches_nothing(name, place, device):
    op = REGISTRY[name]
    arena = raw_arena(1024, device, 0xA5)
    offset = {"start": 0, "middle": 512, "end": 1024}[place]
    operands = [o for o in op.operands if not o.flag]
    hyper = {"lr": 0.1} if "lr" in op.hyper else {}
    op(arena, **{o.name: Range(offset, 0) for o in operands}, **hyper)
    assert (host_bytes(arena) == 0xA5).all()


def test_s04_a_plan_of_one_empty_tensor():
    plan = MemoryPlan(PlanConfig("adamw"))
    plan.parameter("empty", "fc_weight", (0,))
    arena = Arena(plan.finalize(), device="cpu")
    ops.begin_step(arena)
    ops.adamw(arena)
    assert plan.tensors["empty"].slot_bytes == 512


@pytest.mark.parametrize("name", ["clear", "copy", "cast_fp32_to_fp16", "cast_fp16_to_fp32",
                                  "sgd", "ema", "check_nan"])  # fmt: skip
def test_s05_exactly_n_elements_change_and_sentinels_stay(name, device, rng):
    op = REGISTRY[name]
    operands = [o for o in op.operands if not o.flag]
    hyper = {"sgd": {"lr": 0.5}, "ema": {"ema_decay": 0.5}}.get(name, {})
    arena = raw_arena(4096, device)
    # Every n on the CPU; the simulator's slow threads run the ends of the vectors and some more.
    for n in range(1, 68) if device == "cpu" else (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 67):
        put(arena, 0, np.full(4096, 0xA5, np.uint8))
        spans = {}
        for k, o in enumerate(operands):
            size = n * {"u1": 1, "half": 2}.get(o.element, 4)
            spans[o.name] = Range(64 + 1024 * k, size)
            data = rng.standard_normal(n, np.float32) if o.element == "f4" else None
            put(
                arena,
                64 + 1024 * k,
                rng.integers(1, 0x3B, size, np.uint8) if data is None else data,
            )
        before = host_bytes(arena)
        op(arena, **spans, **hyper)
        after = host_bytes(arena)
        changed = np.zeros(4096, bool)
        for o in operands:
            if o.role != "read" and o.name != "g":
                span = spans[o.name]
                changed[span.base_offset : span.end] = True
                assert (before != after)[span.base_offset : span.end].any()
        assert not (before != after)[~changed].any()


@pytest.mark.parametrize("half", [None, "fp16", "bf16"])
def test_s05_a_nan_in_the_last_element_is_found(half, device):
    for n in range(1, 68) if device == "cpu" else (1, 3, 4, 5, 8, 9, 16, 17, 67):
        arena = raw_arena(4096, device)
        if half is None:
            put(arena, 64 + 4 * (n - 1), np.array([np.nan], np.float32))
            launch = ops.check_nan.bind(arena, g=Range(64, 4 * n))
        else:
            put(
                arena, 64 + 2 * (n - 1), np.array([0x7FC0 if half == "bf16" else 0x7E00], np.uint16)
            )
            launch = ops.check_nan.bind(
                arena, g=Range(0, 4 * n), h=Range(64 + 256, 2 * n), half=half
            )
            put(arena, 64 + 256 + 2 * (n - 1), get(arena, 64 + 2 * (n - 1), 1, "u2"))
        launch()
        assert launch.scalars.found_inf == 1, n


@pytest.mark.parametrize("shift", range(1, 16))
def test_s05_shifted_starts_are_refused(shift):
    arena = raw_arena(4096, "cpu", 0xA5)
    with pytest.raises(ValueError, match=r"clear: range dst starts at byte .* multiple of 16"):
        ops.clear(arena, Range(64 + shift, 128))
    assert (host_bytes(arena) == 0xA5).all()


@pytest.mark.parametrize(("name", "size"), [("sgd", 4), ("ema", 4), ("check_nan", 4)])
def test_s05_sizes_that_cut_an_element_are_refused(name, size):
    op = REGISTRY[name]
    arena = raw_arena(4096, "cpu", 0xA5)
    spans = {
        o.name: Range(512 * k, 64 + size // 2) for k, o in enumerate(op.operands) if not o.flag
    }
    hyper = {"lr": 0.1} if "lr" in op.hyper else {}
    with pytest.raises(ValueError, match=f"66 bytes, expected a multiple of {size}"):
        op(arena, **spans, **hyper)
    assert (host_bytes(arena) == 0xA5).all()


def test_s05_planned_ranges_are_whole_vectors():
    plan = small_plan(half="fp16", ema=True)
    assert all(t.offset % 16 == 0 and t.slot_bytes % 256 == 0 for t in plan)
