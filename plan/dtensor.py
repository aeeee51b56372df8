"""DTensor, slot_bytes: a tensor is a descriptor that owns no memory.

A slot is the room a tensor takes in the arena.  With n elements, counted after channel padding:

    slot16(n) = align256(2*n + 16)      FP16, BF16
    slot32(n) = 2 * slot16(n)           FP32, INT32
    slot8(n)  = align256(n + 16)        INT8

An FP32 slot is exactly twice the half slot of the same shape, so a whole series of FP32 tensors
and its half copy correspond by ``offset / 2`` and one flat cast serves them all.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from plan.dtype import DType
from plan.errors import PlanError
from plan.ranges import Range
from plan.region import Region

__all__ = [
    "ALIGNMENT",
    "TAIL",
    "DTensor",
    "DType",
    "align_up",
    "channel_multiple",
    "padded",
    "sizes",
    "slot_bytes",
]

ALIGNMENT = 256
"""Bytes: every slot starts and ends on a multiple of this."""

TAIL = 16
"""Bytes kept free behind the last element, for readers that fetch a whole vector."""


def align_up(value: int, multiple: int) -> int:
    """Round ``value`` up to a multiple of ``multiple``; both are plain ints of any size."""
    return -(-value // multiple) * multiple


def sizes(shape: Sequence[int] | int) -> tuple[int, ...]:
    """Return ``shape`` as a tuple of at most four plain ints; an int is a vector.

    NumPy integers of any width are converted first, so no product of them wraps at 2**31.

    Raises:
        PlanError: more than four dimensions, or a negative one.
        TypeError: a dimension that is not an integer.

    """
    out = tuple(map(operator.index, shape if isinstance(shape, (tuple, list)) else (shape,)))
    if len(out) > 4 or min(out, default=0) < 0:
        raise PlanError(f"shape: got {out}, expected at most 4 dimensions, none negative")
    return out


def channel_multiple(dtype: DType, region: Region) -> int:
    """Return the multiple, in elements, to which ``region`` pads C for ``dtype`` (1: none)."""
    if dtype.is_half and region in (Region.I_A_DATA, Region.I_B_DATA):
        return 4
    if dtype.is_half and region in (Region.F_FEATURE_FP16, Region.F_GRAD_SLOT_FP16):
        return 8
    if dtype is DType.INT8 and region is Region.S_MASK:
        return 8
    return 1


def padded(shape: tuple[int, ...], dtype: DType, region: Region) -> tuple[int, ...]:
    """Return ``shape`` with C rounded up as ``region`` pads it."""
    if not shape:
        return ()
    return (*shape[:-1], align_up(shape[-1], channel_multiple(dtype, region)))


def slot_bytes(numel: int, dtype: DType) -> int:
    """Return the slot size in bytes of ``numel`` elements (channel padding included).

    >>> slot_bytes(0, DType.FP16), slot_bytes(0, DType.FP32), slot_bytes(5, DType.FP16)
    (256, 512, 256)
    """
    n = operator.index(numel)
    if dtype.itemsize == 1:
        return align_up(n + TAIL, ALIGNMENT)
    half = align_up(2 * n + TAIL, ALIGNMENT)
    return half if dtype.is_half else 2 * half


@dataclass(frozen=True, repr=False)
class DTensor:
    """One tensor of a plan: where it lies, never what it holds.

    The same descriptor names the same bytes on every device that runs the plan.  It is known by
    what it was announced as; where it lies is settled later (``finalize``), so ``slot_bytes`` and
    ``offset`` take no part in comparing and hashing: a descriptor that is a key of a dictionary
    is found there before and after.

    Attributes:
        id: position in allocation order; equal over variants of one model.
        name: unique within the plan.
        shape: logical shape as it was given, plain ints.
        dtype: element type.
        region: the region it lies in.
        slot_bytes: bytes it takes in the arena.
        offset: bytes from the arena's start; -1 until the plan is finalized.

    >>> from plan import MemoryPlan
    >>> MemoryPlan().alloc_fc_weight((10, 64), "w")
    <DTensor w: fp32 (10, 64), W_FC_WEIGHT, not placed yet>

    """

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: DType
    region: Region
    slot_bytes: int = field(compare=False)
    offset: int = field(default=-1, compare=False)

    def __repr__(self) -> str:
        """Return name, type, shape, region and place in one line."""
        place = f"at byte {self.offset}" if self.offset >= 0 else "not placed yet"
        return (
            f"<DTensor {self.name}: {self.dtype.label} {self.shape}, {self.region.name}, {place}>"
        )

    def settle(self, slot_bytes: int, offset: int = -1) -> None:
        """Set slot and offset, in bytes; for the planner, until the plan is finalized."""
        object.__setattr__(self, "slot_bytes", slot_bytes)
        object.__setattr__(self, "offset", offset)

    @property
    def span(self) -> Range:
        """The bytes of its slot, padding included."""
        return Range(self.offset, self.slot_bytes)

    @property
    def nhwc(self) -> tuple[int, int, int, int]:
        """The shape as (N, H, W, C); a vector is (1, 1, 1, n)."""
        n, h, w, c = (1,) * (4 - len(self.shape)) + self.shape
        return n, h, w, c

    @property
    def numel(self) -> int:
        """Logical elements, without any padding."""
        return prod(self.shape)

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape as it lies in memory: C rounded up where the region pads channels."""
        return padded(self.shape, self.dtype, self.region)

    @property
    def nbytes(self) -> int:
        """Bytes from the first to past the last element, channel padding included."""
        return prod(self.padded_shape) * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each dimension of ``shape``."""
        out = []
        step = self.dtype.itemsize
        for size in reversed(self.padded_shape):
            out.append(step)
            step *= size
        return tuple(reversed(out))
