"""The one kernel shape of all optimizers, and how an optimizer is declared.

    e = p                               ema, at the arena's first step
    g' = g * grad                       unscaled and clipped, sign turned for maximize
    p, m, v = rule(p, g', m, v, ...)    the optimizer's own rule
    a = half(p)                         half_copy
    e += (1-decay) * (p - e)            ema
    g = 0                               clear_grad

Elements below ``half_start`` read FP32 gradients ``g`` and have no half copy; those from it on
read half gradients ``h`` (half_grad) and write the half copy ``a`` (half_copy).  When the finite
flag is set, p, m, v, e and a keep every bit; ``clear_grad`` clears all the same, so that an
overflow does not stay in the gradients.  Of a tensor that rests (frozen, or without a gradient of
this step) only e moves; of one that was planned as frozen nothing.

L2 and decoupled decay, Nesterov's look-ahead, LARS's scale and maximize are coefficients that
``begin_step`` writes, so optimizers that differ in them alone share a kernel.

Bytes an element: 8 for p, 4 or 2 for the gradient, 8 for each of m, v, e; 2 for the half copy;
clearing writes the gradient once more.  An update that reads no gradient (LAMB's second pass)
reads its moments, 4 bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from plan import OptimizerKind
from rangeops.arena.settings import NAMES as GROUP_SETTINGS
from rangeops.arena.settings import READS as GROUPS_READ
from rangeops.kernels.generate import elementwise
from rangeops.kernels.spec import (
    HALF_GRAD,
    Kernel,
    Operand,
    Stage,
    half_where_used,
    read,
    updated,
    written,
)
from rangeops.launch.coefficients import READS, SETTINGS
from rangeops.launch.op import RangeOp, range_op
from rangeops.ops._ema import AVERAGE, START, copy_rule

COPY = Stage(("a",), copy_rule, copy_rule, "half_copy")
GRADIENT = (
    updated("g", "f4", "G"),
    updated("h", "half", "G", "half_grad", instead_of="g"),
)


def _bytes(moments: int, gradient: bool, flags: Mapping[str, Any]) -> float:
    each = 2 if flags.get("half_grad") else 4
    return (
        8
        + (each * (2 if flags["clear_grad"] else 1) if gradient else 0)
        + (8 if gradient else 4) * moments
        + 8 * flags["ema"]
        + 2 * flags["half_copy"]
    )


def update_kernel(
    name: str, *stages: Stage, moments: str = "", gradient: bool = True, **more: Any
) -> Kernel:
    """Return an update's kernel from the optimizer's own stages.

    ``moments`` are the letters of the moments, "m" or "mv"; a rule gives p first, then them.
    Without ``gradient`` the moments are only read, since a pass before has moved them.
    """
    moment = updated if gradient else read
    operands: tuple[Operand, ...] = (
        updated("p", "f4", "W"),
        *(GRADIENT if gradient else ()),
        *(moment(letter, "f4", letter.upper()) for letter in moments),
        updated("e", "f4", "E", "ema"),
        written("a", "half", "A", "half_copy", copy_of="p"),
    )
    if gradient:
        more |= {"scaled": "g", "clears": "clear_grad"}
    return elementwise(name, operands, (START, *stages, COPY, AVERAGE), gated=True, **more)


def optimizer(
    name: str,
    *,
    formula: str,
    hyper: tuple[str, ...],
    kernel: Kernel | None = None,
    rule: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    moments: str = "",
    options: tuple[str, ...] = ("maximize",),
    settings: Mapping[str, bool] | None = None,
    scalars: Mapping[str, float] | None = None,
    beside: tuple[str, ...] = (),
    origin: str = "(beyond)",
    source: str = "",
) -> RangeOp:
    """Declare an optimizer; ``PlanConfig(name)`` and ``OptimizerStep`` take it from then on.

    >>> from rangeops import optimizer
    >>> def sign_rule(p, g, lr):
    ...     return p - lr * (1 if g > 0 else -1 if g < 0 else 0)

    Args:
        name: the optimizer's name.
        formula: what it computes, in ASCII.
        hyper: the scalars that it reads, by which a caller may set them.
        kernel: an update kernel that it shares with another optimizer; else it is made from
        rule: ``rule(p, g, m, v, ...)`` in scalars: float32 operands first (those of ``moments``),
            then coefficients by name (``plan.scratch.ROW``) and ``scalars``; gives p and the
            moments.  ``g`` comes unscaled and clipped.
        reference: the same in NumPy, spelled on its own: what the kernel has to equal bit for bit.
        moments: "", "m" or "mv": what it keeps for a parameter.
        options: the bits of the option word that a caller may choose.
        settings: the options that it wants by its nature: "decoupled" (weight decay shrinks p
            through ``keep`` instead of entering g), "nesterov", "lr_outside".
        scalars: FP32 scalars of its own, name -> initial value.
        beside: coefficients by tensor that its other passes read, if it has some.
        origin: the origin's name of the op.
        source: the paper, with its equation.

    Raises:
        ValueError: the name is taken, or an argument of the rule is unknown.
        TypeError: neither a kernel nor a rule with its reference.

    """
    own = dict(scalars or {})
    kernel = kernel or _kernel_of(name, rule, reference, moments, tuple(own))
    names = [argument for argument, _ in kernel.arguments]
    kept = [letter for letter in "mv" if letter in names]
    if name not in {kind.label for kind in OptimizerKind}:
        OptimizerKind.register(name, series="".join(kept).upper(), scalars=own)
    SETTINGS[name] = dict(settings or {})
    _enter(name, kernel, beside, (*hyper, *options))
    return range_op(
        name,
        origin=origin,
        formula=formula,
        operands=kernel.operands,
        kernel=kernel,
        bytes_per_element=partial(_bytes, len(kept), "g" in names),
        flags=_flags("g" in names),
        hyper=(*hyper, *own),
        options=options,
        valid=half_where_used,
        settings=SETTINGS[name],
        scalars=own,
        source=source,
    )


def _enter(name: str, kernel: Kernel, beside: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Enter what an optimizer reads of a tensor's row, and what its groups may set."""
    READS[name] = frozenset({*_coefficients(kernel), *beside})
    GROUPS_READ[name] = _reads(kernel, names, norms="N" in OptimizerKind.named(name).series)


def _coefficients(kernel: Kernel) -> set[str]:
    """Return the names that a kernel's rules read, and the gradient's factor."""
    read_by_rules = {argument for stage in kernel.stages for argument in stage.arguments}
    return read_by_rules | {"grad"}


def _reads(kernel: Kernel, names: tuple[str, ...], norms: bool) -> dict[str, tuple[Any, ...]]:
    """Return the settings that a group may have, by what the optimizer takes and its rules read."""
    read_by_rules = _coefficients(kernel)
    taken: dict[str, tuple[Any, ...]] = {name: () for name in names if name in GROUP_SETTINGS}
    if "look_gradient" in read_by_rules:
        taken["nesterov"] = ()
    if norms:
        taken["adapt"] = ()
    decays = {"l2": "weight_decay", "decoupled": "keep"}
    kinds = tuple(kind for kind, by in decays.items() if by in read_by_rules)
    return taken | ({"decay": kinds} if kinds else {})


def _kernel_of(
    name: str, rule: Any, reference: Any, moments: str, scalars: tuple[str, ...]
) -> Kernel:
    """Return the kernel of an optimizer of one rule; refuse one without a reference."""
    if rule is None or reference is None:
        raise TypeError(
            f"optimizer {name}: got rule={rule} and reference={reference}, expected both; the "
            "reference is what the kernel is verified against"
        )
    stage = Stage(("p", *moments), rule, reference)
    return update_kernel(name, stage, moments=moments, scalars=scalars)


def _flags(gradient: bool) -> dict[str, tuple[Any, ...]]:
    """Return the compile-time choices of an update, with or without a gradient of its own."""
    fused: dict[str, tuple[Any, ...]] = {"half_copy": (False, True), "ema": (False, True)}
    if gradient:
        return {**HALF_GRAD, **fused, "clear_grad": (False, True)}
    return {"half": HALF_GRAD["half"], **fused}
