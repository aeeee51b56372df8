"""Arenas with unmapped: addresses for all, memory for what is used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan import PlanConfig, PlanError, Range
from plan.models import ParameterSpec, plan_model
from rangeops import Arena, ops, write_kept
from rangeops.device.pages import Reserved, backed, outside
from rangeops.ranks import Shard
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
