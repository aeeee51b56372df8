"""Arenas with unmapped: addresses for all, memory for what is used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan import MemoryPlan, PlanConfig, PlanError, Range
from plan.models import ParameterSpec, plan_model
from rangeops import Arena, OptimizerStep, averaged, ops, write_kept
from rangeops.device.pages import Reserved, backed, outside, whole_pages
from rangeops.ranks import Shard
from tests import tolerance
from tests.helpers import small_plan


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9))), st.integers(1, 400))
def test_all_but_whole_pages_of_holes_have_memory(steps, nbytes):
    unmapped, at = [], 0
    for gap, size in steps:
        unmapped.append(Range(at + gap, size))
        at += gap + size
    unmapped = [hole for hole in unmapped if hole.end <= nbytes]
    parts = backed(nbytes, unmapped, 4)
    kept = {byte for part in parts for byte in range(part.base_offset, part.end)}
    lost = {
        4 * page + byte
        for hole in unmapped
        for page in range(-(-hole.base_offset // 4), hole.end // 4)
        for byte in range(4)
    }
    assert kept == set(range(nbytes)) - lost
    assert all(part.base_offset % 4 == 0 for part in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_element_has_one_owner(size):
    plan = small_plan("adamw", half="fp16")
    spans = [Shard(plan, rank, size) for rank in range(size)]
    owned = np.zeros(spans[0].numel, int)
    for shard in spans:
        owned[shard.own[0] : shard.own[1]] += 1
        assert shard.own[0] % 128 == 0 and shard.mine("G", half=True).base_offset % 16 == 0
    assert (owned == 1).all()


@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("half", [None, "fp16"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_byte_of_state_is_kept_by_one_rank_or_by_all(size, half, masters):
    """Moments by one; averages and masters too if so wished; what the forward pass reads by all."""
    plan = small_plan("adamw", half=half, ema=True)
    kept = np.zeros(plan.total_bytes, int)
    for rank in range(size):
        for part in outside(Shard(plan, rank, size).unmapped(masters), Range(0, plan.total_bytes)):
            kept[part.base_offset : part.end] += 1
    once = [plan.series_range("M"), plan.series_range("V")]
    if masters:
        once.append(plan.series_range("E"))
    if masters and half:
        once.append(plan.series_range("W", "weight"))
    for span in once:
        assert (kept[span.base_offset : span.end] == 1).all()
        kept[span.base_offset : span.end] = size
    assert (kept == size).all()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_write_together_what_one_arena_holds(size, device):
    plan = small_plan("adamw", half="fp16", ema=True)
    whole = Arena(plan, device=device)
    whole.initialize()
    values = {t: np.random.default_rng(k).random(t.shape) for k, t in enumerate(plan.weights())}
    for tensor, value in values.items():
        whole[tensor] = value
    for rank in range(size):
        unmapped = Shard(plan, rank, size).unmapped(masters=True)
        arena = Arena(plan, device=device, unmapped=unmapped)
        arena.initialize()
        for tensor, value in values.items():
            write_kept(arena, tensor, value)
        spans = [s for series in "WE" for s in outside(unmapped, plan.series_range(series))]
        for part in spans:
            np.testing.assert_array_equal(arena.read(part), whole.read(part))


def test_a_hole_is_refused_and_the_rest_works(device):
    plan = small_plan("adamw")
    hole = plan.series_range("V", "bias")
    arena = Arena(plan, device=device, unmapped=[hole])
    with pytest.raises(PlanError, match=r"arena\['fc.bias#V'\] got bytes .* hole of this arena"):
        arena["fc.bias#V"] = 1.0
    with pytest.raises(PlanError, match="adamw: range v got bytes .* reach into a hole"):
        ops.adamw.bind(arena)
    with pytest.raises(PlanError, match="read got bytes"):
        arena.read(hole)
    arena["fc.weight#V"] = 2.0
    assert float(arena.download("fc.weight#V").sum()) == 600.0
    ops.adamw.bind(arena, part="weight")
    with pytest.raises(PlanError, match="got a buffer and unmapped, expected one of the two"):
        Arena(plan, buffer=np.zeros(plan.total_bytes, np.uint8), unmapped=[hole])


@pytest.mark.gpu
def test_pages_are_made_and_given_back_by_the_driver():
    import cupy

    cupy.zeros(1)
    found = Reserved(10 << 20, 0)
    parts = backed(10 << 20, [Range(3 << 20, 5 << 20)], found.page)
    for part in parts:
        found.back(part)
    assert sum(size for _, size, _ in found.pages) == 6 << 20
    found.close()
    found.close()
    assert not found.pages
    with pytest.raises(PlanError, match="cuMemCreate says CUDA_ERROR_OUT_OF_MEMORY, expected mem"):
        Reserved(1 << 42, 0).back(Range(0, 1 << 42))


@pytest.mark.gpu
def test_an_arena_with_holes_trains_its_shard_to_the_same_bits():
    import cupy

    plan = plan_model([ParameterSpec("w", "fc_weight", (30_000_000,))], PlanConfig("adamw"))
    shard = Shard(plan, 1, 3)
    unmapped = shard.unmapped()
    arena, whole = Arena(plan, unmapped=unmapped), Arena(plan)
    lost = plan.total_bytes - sum(p.size for p in backed(plan.total_bytes, unmapped, 2 << 20))
    assert 0 < sum(hole.size for hole in unmapped) - lost < 4 * (4 << 20)
    spans = {name: shard.mine(name.upper().replace("P", "W")) for name in "pgmv"}
    for one in (whole, arena):
        rng = cupy.random.default_rng(3)
        for series in "WG":
            view = one.view(plan.series_range(series), "f4")
            view[:] = rng.standard_normal(view.size, dtype=cupy.float32)
        one.scalars.set(lr=0.1, weight_decay=0.1)
        for _ in range(3):
            ops.begin_step(one)
            ops.adamw(one, **spans)
    for span in spans.values():
        np.testing.assert_array_equal(arena.read(span), whole.read(span))


def with_a_frozen_weight(numel):
    """Return a plan of one large weight, planned as frozen, and a small trained one."""
    plan = MemoryPlan(PlanConfig("adamw", ema=True))
    plan.parameter("ice", "fc_weight", (numel,), trainable=False)
    plan.parameter("w", "fc_weight", (5000,))
    return plan.finalize()


def test_holes_of_ranks_and_of_a_plan_go_together(device):
    """What others own and what nobody uses may lie over one another."""
    plan = with_a_frozen_weight(4000)
    spans = [Shard(plan, rank, 2).unmapped() for rank in range(2)]
    assert any(
        a.base_offset < b.end and b.base_offset < a.end
        for unmapped in spans
        for a in unmapped
        for b in plan.idle
    )
    for unmapped in spans:
        arena = Arena(plan, device=device, unmapped=unmapped)
        arena["ice"] = 2.0
        with pytest.raises(PlanError, match=r"arena\['ice#V'\] got bytes .* reach into a hole"):
            arena["ice#V"]
        assert set(arena.holes) == {*unmapped, *plan.idle} and arena.unmapped == tuple(unmapped)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6),
)
def test_no_page_is_shared_and_backed_at_once(unmapped, idle):
    unmapped, idle = ([Range(*pair) for pair in pairs] for pairs in (unmapped, idle))
    parts = backed(100, [*unmapped, *idle], 4)
    kept = {byte // 4 for part in parts for byte in range(part.base_offset, part.end)}
    shared = {
        byte // 4 for part in whole_pages(idle, 4) for byte in range(part.base_offset, part.end)
    }
    assert not kept & shared


@pytest.mark.gpu
def test_a_frozen_weight_takes_memory_for_itself_alone(monkeypatch):
    """64 Mi elements: 256 MiB, where gradient, moments and average would take 1 GiB more."""
    import cupy

    def train(arena):
        for hole in arena.plan.idle:  # NaN, by way of the one page behind it all
            arena.memory[hole.base_offset : min(hole.end, hole.base_offset + (4 << 20))] = 0xFF
        arena["ice"][...] = 2.0
        step = OptimizerStep(arena, lr=0.1, clip_norm=1.0, check=True, ema_decay=0.5)
        arena["w#G"] = 1.0
        step()
        status = step.status()
        assert (status.step, status.skipped_steps) == (1, 0)
        assert status.grad_norm == pytest.approx(5000**0.5, rel=tolerance.STEP)
        assert bool((arena["w"] < 0).all())
        with averaged(arena):
            assert bool((arena["ice"] == 2.0).all())
        assert bool((arena["ice"] == 2.0).all())
        assert float(arena["ice"][:1000].sum()) == 2000.0
        cupy.cuda.Device().synchronize()

    train(Arena(with_a_frozen_weight(1000), device="cuda"))  # loads the kernels
    numel = 64 << 20
    plan = with_a_frozen_weight(numel)
    call, sizes = Reserved._call, []

    def counting(self, name, *arguments):
        if name == "cuMemCreate":
            sizes.append(arguments[0])
        return call(self, name, *arguments)

    monkeypatch.setattr(Reserved, "_call", counting)  # other processes take and give memory too
    arena = Arena(plan, device="cuda")
    taken = sum(sizes)
    assert 4 * numel <= taken < 4 * numel + (48 << 20)  # its rows of the tables, and whole pages
    assert plan.total_bytes > 5 * 4 * numel
    train(arena)


@pytest.mark.gpu
def test_what_nobody_uses_lies_on_one_page():
    plan = with_a_frozen_weight(8 << 20)
    arena = Arena(plan, device="cuda")
    page = Reserved(1, 0).page
    parts = whole_pages(plan.idle, page)
    assert len(parts) == len(plan.idle) == 4 and all(part.size > 8 * page for part in parts)
    assert not arena.memory[parts[0].base_offset : parts[0].end].any(), "zero from the start"
    at = 12345
    arena.memory[parts[0].base_offset + at] = 7
    for part in parts:
        seen = arena.memory[part.base_offset : part.end].reshape(-1, page)
        assert bool((seen[:, at] == 7).all()) and int(seen.astype("i8").sum()) == 7 * len(seen)
    found = Reserved(8 * page, 0)
    found.share([Range(0, 3 * page), Range(5 * page, page)])
    assert [size for _, size, _ in found.pages] == [page] * 4
    assert len({int(handle) for _, _, handle in found.pages}) == 1
    found.close()
    assert not found.pages and not found.ptr
