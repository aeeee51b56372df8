"""sparse: arenas with unmapped ranges, which have addresses and no memory.

A rank of a sharded step never touches much of what other ranks own (``Shard.unmapped``); see
``rangeops.device.pages`` for how a GPU and the host leave such ranges without memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plan import DTensor, PlanError, Range
from rangeops.device.pages import outside

__all__ = ["check_mapped", "outside", "write_kept"]


def check_mapped(unmapped: Sequence[Range], what: str, span: Range) -> None:
    """Refuse a range that reaches into a hole.

    Raises:
        PlanError: it does.

    """
    for hole in unmapped:
        if span.size and span.base_offset < hole.end and hole.base_offset < span.end:
            raise PlanError(
                f"{what} got bytes {span.base_offset} .. {span.end}, which reach into a hole of "
                f"this arena ({hole.base_offset} .. {hole.end}), expected memory that it keeps; "
                "use what this rank owns, of parameters that are trained"
            )


def write_kept(arena: Any, tensor: DTensor | str, values: Any) -> None:
    """Write what an arena keeps of a tensor, all but its unmapped, from the values of all of it.

    >>> from plan import MemoryPlan, PlanConfig
    >>> from rangeops import Arena
    >>> plan = MemoryPlan(PlanConfig("sgd"))
    >>> w = plan.parameter("w", "fc_weight", (2, 300)).weight
    >>> arena = Arena(plan.finalize(), device="cpu", unmapped=[Range(w.offset, 1024)])
    >>> write_kept(arena, "w", 3.0)
    >>> float(arena.view(Range(w.offset + 1024, 4), "f4")[0])
    3.0

    Args:
        arena: an arena, with unmapped or without.
        tensor: a tensor of its plan, or its name.
        values: NumPy array of the tensor's shape, or a scalar; bf16 as uint16 bits.

    """
    descriptor = arena.tensor(tensor)
    whole = np.zeros(descriptor.padded_shape, descriptor.dtype.numpy)
    whole[..., : descriptor.shape[-1]] = values
    raw = whole.reshape(-1).view("u1")
    for part in outside(arena.holes, Range(descriptor.offset, descriptor.nbytes)):
        first = part.base_offset - descriptor.offset
        arena.write(part.base_offset, raw[first : first + part.size])
