"""optimizer: an optimizer is declared by its rules; its kernels come from ``rangeops.ops.update``.

Bytes an element: 8 for p, 4 or 2 for the gradient, 8 for each of m, v, e; 2 for the half copy;
clearing writes the gradient once more.  An op that applies what a pass before it moved reads m and
v (4 each) and no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rangeops.kernels.spec import (
    HALF_GRAD,
    Kernel,
    Operand,
    arguments_of,
    half_where_used,
    read,
    updated,
    written,
)
from rangeops.launch.op import RangeOp, range_op
from rangeops.ops._update import update_cpu, update_gpu, update_reference


def _bytes(moments: int, applies: bool, flags: Mapping[str, Any]) -> float:
    gradient = 2 if flags.get("half_grad") else 4
    return (
        8
        + (0 if applies else gradient * (2 if flags["clear_grad"] else 1))
        + (4 if applies else 8) * moments
        + 8 * flags["ema"]
        + 2 * flags["half_copy"]
    )


def optimizer(
    name: str,
    *,
    origin: str,
    formula: str,
    rules: Mapping[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]],
    moments: int,
    hyper: tuple[str, ...],
    options: tuple[str, ...] = ("maximize",),
    applies: bool = False,
) -> RangeOp:
    """Declare an optimizer from its rules.

    ``rules`` maps each kind of weight decay ("l2", "decoupled") to (rule, reference,
    coefficients):
    ``rule(p, g, m, v, c)`` in scalars, ``reference`` the same in NumPy, ``coefficients(c, row)``
    the tuple c that both take, read from the coefficient block.  An op that ``applies`` reads no
    gradient and leaves the moments, which a pass before it has moved; its rule is given as
    ``rule(x)``, which returns it for a vocabulary, so that both passes share a formula.
    """
    moment = read if applies else updated
    operands: tuple[Operand, ...] = (
        updated("p", "f4", "W"),
        updated("g", "f4", "G"),
        updated("h", "half", "G", "half_grad"),
        moment("m", "f4", "M"),
        moment("v", "f4", "V"),
        updated("e", "f4", "E", "ema"),
        written("a", "half", "A", "half_copy"),
    )
    absent = (*("m", "v")[moments:], *(("g", "h") if applies else ()))
    fixed = {"half_grad": False, "clear_grad": False} if applies else {}

    def choose(make: Callable[..., Any], which: int) -> Callable[..., Any]:
        def build(*vocabulary: Any, decay: str, **flags: Any) -> Any:
            rule, reference, coefficients = rules[decay]
            chosen = reference if which else rule
            return make(*vocabulary, chosen, coefficients, moments, applies, **flags, **fixed)

        return build

    choices: dict[str, tuple[Any, ...]] = {
        "decay": tuple(rules),
        **HALF_GRAD,
        "half_copy": (False, True),
        "ema": (False, True),
        "clear_grad": (False, True),
    }
    kernel = Kernel(
        name,
        arguments_of(operands, "segments", "c", "k"),
        ("half_start", "shift", "n"),
        gpu=choose(update_gpu, 0),
        cpu=choose(update_cpu, 0),
        reference=choose(update_reference, 1),
    )
    return range_op(
        name,
        origin=origin,
        formula=formula,
        operands=tuple(o for o in operands if o.name not in absent),
        kernel=kernel,
        bytes_per_element=partial(_bytes, moments, applies),
        flags={name: values for name, values in choices.items() if name not in fixed},
        hyper=hyper,
        options=options,
        valid=half_where_used,
    )
