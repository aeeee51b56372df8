"""DType: the element types of tensors, one row each."""

from __future__ import annotations

from enum import Enum

import numpy as np

from plan.errors import PlanError


class DType(Enum):
    """Element type of a tensor.

    Attributes:
        label: its name in this library, "fp32".
        full_name: its name in torch, JAX and ml_dtypes, "float32".
        numpy: the NumPy type of a tensor's view, "f4"; bf16, which NumPy lacks, is its bits.
        element: what an op's operand calls it: "f4", "half" (either 16-bit float), "i4" or "i1".
        is_floating: whether it has an exponent.
        itemsize: bytes of one element.

    >>> DType.FP32.itemsize, DType.BF16.itemsize
    (4, 2)
    >>> DType.BF16.numpy, DType.FP16.numpy, DType.FP16.bits
    ('u2', 'f2', 'u2')

    """

    FP32 = ("fp32", "float32", "f4", "f4", True)
    FP16 = ("fp16", "float16", "f2", "half", True)
    BF16 = ("bf16", "bfloat16", "u2", "half", True)
    INT32 = ("int32", "int32", "i4", "i4", False)
    INT8 = ("int8", "int8", "i1", "i1", False)

    def __init__(
        self, label: str, full_name: str, numpy: str, element: str, is_floating: bool
    ) -> None:
        self.label = label
        self.full_name = full_name
        self.numpy = numpy
        self.element = element
        self.is_floating = is_floating
        self.itemsize = np.dtype(numpy).itemsize

    def __repr__(self) -> str:
        """Return the member as it is spelled."""
        return f"DType.{self.name}"

    @property
    def is_half(self) -> bool:
        """Whether this is one of the two 16-bit floating-point types."""
        return self.element == "half"

    @property
    def bits(self) -> str:
        """The NumPy type that kernels and collectives take: 16-bit floats as their bits, "u2"."""
        return "u2" if self.is_half else self.numpy

    @classmethod
    def named(cls, label: str) -> DType:
        """Return the type with this label.

        Raises:
            PlanError: no type is named so.

        >>> DType.named("bf16")
        DType.BF16

        """
        for dtype in cls:
            if dtype.label == label:
                return dtype
        names = ", ".join(dtype.label for dtype in cls)
        raise PlanError(f"DType: got {label!r}, expected one of {names}")
