"""The table of element types."""

import numpy as np
import pytest

import plan
import plan.dtensor
from plan import DType, PlanError


@pytest.mark.parametrize(
    ("dtype", "itemsize", "numpy", "bits", "element"),
    [
        (DType.FP32, 4, "f4", "f4", "f4"),
        (DType.FP16, 2, "f2", "u2", "half"),
        (DType.BF16, 2, "u2", "u2", "half"),
        (DType.INT32, 4, "i4", "i4", "i4"),
        (DType.INT8, 1, "i1", "i1", "i1"),
    ],
)
def test_each_type_as_views_kernels_and_ops_see_it(dtype, itemsize, numpy, bits, element):
    assert (dtype.itemsize, dtype.numpy, dtype.bits, dtype.element) == (
        itemsize, numpy, bits, element,
    )  # fmt: skip
    assert np.dtype(dtype.numpy).itemsize == np.dtype(dtype.bits).itemsize == itemsize


def test_halves_are_the_two_16_bit_floats():
    assert [d for d in DType if d.is_half] == [DType.FP16, DType.BF16]
    assert [d for d in DType if d.is_floating] == [DType.FP32, DType.FP16, DType.BF16]


def test_full_names_are_those_of_other_libraries():
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")  # NumPy knows bf16 then
    for dtype in DType:
        assert np.dtype(dtype.full_name).itemsize == dtype.itemsize


def test_types_by_name():
    assert all(DType.named(d.label) is d for d in DType)
    with pytest.raises(PlanError, match="got 'fp8', expected one of fp32, fp16, bf16, int32, int8"):
        DType.named("fp8")


def test_there_is_one_table():
    assert plan.dtensor.DType is plan.DType is DType
    assert repr(DType.BF16) == "DType.BF16"
