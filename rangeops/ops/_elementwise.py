"""elementwise_op: an op of one rule over ranges, declared in one call; users' ops as well.

clamp = elementwise_op(
"clamp", formula="x = min(max(x, -limit), limit)", operands=(updated("x", "f4"),),
rule=clamp_rule, reference=clamp_reference, scalars={"limit": 1.0})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from plan.scratch import ROW
from rangeops.kernels.generate import elementwise
from rangeops.kernels.spec import Operand, Stage
from rangeops.launch.coefficients import READ_BY_OTHERS
from rangeops.launch.op import RangeOp, range_op

_TIMES = {"read": 1, "written": 1, "updated": 2}


def elementwise_op(
    name: str,
    *,
    formula: str,
    operands: tuple[Operand, ...],
    rule: Callable[..., Any],
    reference: Callable[..., Any],
    gated: bool = False,
    scalars: Mapping[str, float] | None = None,
    hyper: tuple[str, ...] = (),
    flags: Mapping[str, tuple[Any, ...]] | None = None,
    per_thread: int = 4,
    origin: str = "(beyond)",
    source: str = "",
) -> RangeOp:
    """Declare an op whose every element follows one rule, and return it.

    Args:
        name: the op's name.
        formula: what it computes, in ASCII.
        operands: its ranges, of ``read``, ``updated`` and ``written``.
        rule: scalars in, scalars out: an argument is an operand's element in float32, a scalar of
            the plan, one of ``scalars``, or, if the op is gated, a coefficient of the tensor; the
            results are those of the operands that are not only read, in order.
        reference: the same in NumPy, spelled on its own: what the kernel has to equal bit for bit.
        gated: nothing is written where the finite flag is set, or the tensor rests.
        scalars: FP32 scalars of its own, name -> initial value; ``PlanConfig(scalars=...)`` gives
            a planned arena room for them.
        hyper: scalars of the plan that a caller may give by name.
        flags: {"half": ("fp16", "bf16")} where an operand is half.
        per_thread: 4, or 8 where all ranges are half or the rate is better (measured).
        origin: the origin's name of the op.
        source: where the formula comes from.

    Raises:
        ValueError: the name is taken, or an argument of the rule is unknown.

    """
    own = dict(scalars or {})
    if gated:
        READ_BY_OTHERS.update(inspect.signature(rule).parameters.keys() & set(ROW))
    targets = tuple(o.name for o in operands if o.role != "read")
    moved = sum(o.itemsize * _TIMES[o.role] for o in operands)
    return range_op(
        name,
        origin=origin,
        formula=formula,
        operands=operands,
        kernel=elementwise(
            name,
            operands,
            (Stage(targets, rule, reference),),
            gated=gated,
            scalars=tuple(own),
            per_thread=per_thread,
        ),
        bytes_per_element=lambda flags: moved,
        flags=flags or {},
        hyper=(*hyper, *own),
        scalars=own,
        source=source,
    )
