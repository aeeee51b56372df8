"""generate: an elementwise op is a few scalar rules; kernel, CPU loop and reference come from them.

    ema = elementwise(
        "ema", (updated("e", "f4", "E"), read("p", "f4", "W")),
        (Stage(("e",), ema_rule, ema_reference),), gated=True)

A rule's arguments are named: an operand's element as float32, a coefficient of ``plan.scratch``'s
row, a scalar of the plan, or a temporary that a stage before it has made.  The rule knows
no index, and what is generated no maths:

    kernel      a thread loads four (or eight) elements of every range, runs the rules, stores
    loop        the same over granules of 128 elements, a pass a rule, so that it vectorizes
    reference   the stages' NumPy spellings over whole ranges, with masks instead of branches

``rangeops.kernels.source`` keeps the text as a file, so that tracebacks and profilers show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rangeops.kernels.cpu_text import cpu_text
from rangeops.kernels.gpu_text import gpu_text
from rangeops.kernels.reference import reference_of
from rangeops.kernels.source import function_of
from rangeops.kernels.spec import Kernel, Operand, Stage, arguments_of
from rangeops.kernels.stages import (
    Elementwise,
    check_names,
    constants,
    integers,
    rules_of,
    scope,
)


def elementwise(
    name: str,
    operands: tuple[Operand, ...],
    stages: tuple[Stage, ...],
    *,
    gated: bool = False,
    scaled: str = "",
    clears: str = "",
    scalars: tuple[str, ...] = (),
    per_thread: int = 4,
) -> Kernel:
    """Return the kernel of an elementwise op from its rules.

    Args:
        name: unique; the generated function's name.
        operands: the ranges; an operand that is ``instead_of`` or ``copy_of`` another one begins
            at the element ``half_start``.
        stages: the rules, in order.
        gated: nothing is written where the finite flag is set, and of a tensor that rests only what
            ``resting`` stages give.
        scaled: the operand that the row's ``grad`` multiplies: the gradient.
        clears: the flag with which the gradient is zero afterwards, held back or not.
        scalars: names of the op's own scalars.
        per_thread: 4, or 8 where the rate is then better (measured; see the op).

    Raises:
        ValueError: an argument of a rule that is nothing known, or a scalar's name that is taken.

    """
    d = Elementwise(name, operands, stages, gated, scaled, clears, scalars, per_thread)
    check_names(d)
    if gated and per_thread != 4:
        raise ValueError(f"{name}: per_thread got {per_thread} for a gated op, expected 4")
    own = tuple((f"scalar.{scalar}", "f4") for scalar in scalars)

    rules = rules_of(name, stages)

    def make(write: Callable[[Elementwise, Mapping[str, Any]], str]) -> Callable[..., Any]:
        def build(x: Any, **flags: Any) -> Any:
            return function_of(name, write(d, flags), constants(), scope(x, rules, flags), rules)

        return build

    return Kernel(
        name,
        (*arguments_of(operands, *d.state()), *own),
        integers(d),
        gpu=make(gpu_text),
        cpu=make(cpu_text),
        reference=lambda **flags: reference_of(d, flags),
        per_thread=per_thread,
        operands=operands,
        stages=stages,
    )
