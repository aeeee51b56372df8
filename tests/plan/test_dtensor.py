"""Slots, channel padding and strides."""

import numpy as np
import pytest

from plan import DType, MemoryPlan, PlanConfig, PlanError, Region, slot_bytes
from plan.dtensor import channel_multiple


@pytest.mark.parametrize(
    ("numel", "half", "full", "byte"),
    [
        (0, 256, 512, 256),
        (5, 256, 512, 256),
        (120, 256, 512, 256),
        (121, 512, 1024, 256),
        (240, 512, 1024, 256),
        (241, 512, 1024, 512),
        (2**40, 2**41 + 256, 2**42 + 512, 2**40 + 256),
    ],
)
def test_slot_sizes(numel, half, full, byte):
    assert slot_bytes(numel, DType.FP16) == slot_bytes(numel, DType.BF16) == half
    assert slot_bytes(numel, DType.FP32) == slot_bytes(numel, DType.INT32) == full
    assert slot_bytes(numel, DType.INT8) == byte


@pytest.mark.parametrize(
    ("dtype", "region", "multiple"),
    [
        (DType.FP16, Region.I_A_DATA, 4),
        (DType.BF16, Region.I_B_DATA, 4),
        (DType.FP16, Region.F_FEATURE_FP16, 8),
        (DType.FP16, Region.F_GRAD_SLOT_FP16, 8),
        (DType.INT8, Region.S_MASK, 8),
        (DType.FP32, Region.I_A_DATA, 1),
        (DType.INT8, Region.I_A_DATA, 1),
        (DType.FP16, Region.A_DEEP_CONV, 1),
        (DType.FP16, Region.T_TEMP_FP16, 1),
        (DType.INT8, Region.S_SCALAR_INT8, 1),
    ],
)
def test_channel_padding(dtype, region, multiple):
    assert channel_multiple(dtype, region) == multiple


def test_padded_channels_show_in_slot_and_strides():
    plan = MemoryPlan(PlanConfig(half="fp16"))
    _, data, _, _ = plan.alloc_inputs((2,), (2, 5, 5, 3), DType.FP16)
    mask = plan.alloc_mask((1, 1, 1, 9))
    assert data.padded_shape == (2, 5, 5, 4)
    assert data.strides == (200, 40, 8, 2)
    assert data.slot_bytes == slot_bytes(200, DType.FP16) == 512
    assert mask.slot_bytes == slot_bytes(16, DType.INT8)


def test_vector_and_scalar_shapes_are_in_c():
    plan = MemoryPlan()
    assert plan.alloc(Region.W_FC_BIAS, (7,)).nhwc == (1, 1, 1, 7)
    assert plan.alloc(Region.W_FC_BIAS, 7).shape == (7,)
    assert plan.alloc(Region.W_FC_BIAS, ()).numel == 1


def test_s02_numpy_integers_do_not_wrap():
    plan = MemoryPlan(PlanConfig(half="fp16"))
    n = np.int32(1_200_000_000)
    half, full = plan.alloc_temp((n,), DType.FP16), plan.alloc_temp((n,), DType.FP32)
    assert (half.slot_bytes, full.slot_bytes) == (2_400_000_256, 4_800_000_512)
    wide = plan.alloc_temp(tuple(np.int32([65536, 32768, 1, 1])), DType.FP32)
    assert wide.numel == 2_147_483_648
    for value in (half.slot_bytes, full.slot_bytes, wide.numel, *wide.shape, *wide.strides):
        assert type(value) is int
    assert slot_bytes(n, DType.FP16) == 2_400_000_256


def test_s04_slots_of_empty_tensors():
    assert slot_bytes(0, DType.FP16) == 256
    assert slot_bytes(0, DType.FP32) == 512
    assert slot_bytes(5, DType.FP16) == 256


@pytest.mark.parametrize("shape", [(1, 2, 3, 4, 5), (2, -1)])
def test_bad_shapes_are_refused(shape):
    with pytest.raises(PlanError, match=r"shape: got .* expected at most 4 dimensions"):
        MemoryPlan().alloc_temp(shape, DType.FP32)


def test_fractional_dimension_is_refused():
    with pytest.raises(TypeError, match="integer"):
        MemoryPlan().alloc_temp((2.5,), DType.FP32)


def test_a_descriptor_is_known_by_what_it_was_announced_as():
    one, two = (MemoryPlan(PlanConfig("none")) for _ in range(2))
    a, b = (plan.parameter("w", "fc_weight", (3,)).weight for plan in (one, two))
    one.finalize()
    assert a.offset != b.offset and a == b and hash(a) == hash(b)
    assert a != two.alloc_fc_weight((3,), "x")
    assert a != MemoryPlan().parameter("w", "fc_weight", (4,)).weight


def test_a_descriptor_says_where_it_lies_in_one_line():
    plan = MemoryPlan(PlanConfig("none", half="bf16"))
    half = plan.parameter("w", "fc_weight", (3, 4)).half_copy
    assert repr(half) == "<DTensor w#A16: bf16 (3, 4), A_FC_WEIGHT, not placed yet>"
    plan.finalize()
    assert repr(half) == "<DTensor w#A16: bf16 (3, 4), A_FC_WEIGHT, at byte 512>"
    assert half.span == (512, 256)
