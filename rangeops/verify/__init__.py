"""verify: run any op on the caller's own plan and device, and compare it with its NumPy reference.

    check(launch)             one bound launch, on its memory as it lies
    verify(arena, op, ...)    one op on an arena's present contents
    verify_all(arena)         every op and option that a plan has regions for
    verify_every_op(device)   every op there is, on small plans of every optimizer
    verify_op(op)             one op, of the caller's own perhaps, also on raw ranges between guards

The comparison is by bits (any NaN equals any NaN) over every range and every part of the state
that the kernel was given; the first element that differs is named by tensor and index.
"""

from rangeops.verify.compare import Verdict, check, differing, fill_random, locate
from rangeops.verify.every import (
    every_plan,
    planned_variants,
    verify,
    verify_all,
    verify_every_op,
    verify_op,
)

__all__ = [
    "Verdict",
    "check",
    "differing",
    "every_plan",
    "fill_random",
    "locate",
    "planned_variants",
    "verify",
    "verify_all",
    "verify_every_op",
    "verify_op",
]
