"""reference: an op's signature, documentation and one-line repr, all from its declaration."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from plan import DType
from plan.scalars import FP32_SCALARS, INT32_SCALARS
from plan.series import SERIES
from rangeops.kernels.spec import Operand, OpSpec
from rangeops.launch.coefficients import DEFAULTS

WORDS = {
    "half_grad": "read half gradients h (of the kinds that have them) instead of g",
    "half_copy": "write the half copy a of the new weights",
    "ema": "move the EMA weights e after the new weights",
    "clear_grad": "leave zero gradients behind",
    "clip": "clamp gradients at clip_value",
    "weights": "sum the squares of the weights as well",
    "swap": "exchange the two instead of copying one",
    "of": "which sums are folded",
    "kind": "whose ratio",
    "bias_correction": "divide the moments by 1 - beta**t",
    "ema_warmup": "one_minus_ema_decay is at least 9 / (9 + t)",
    "maximize": "ascend: the gradient's sign is turned",
    "loss_scaling": "move the loss scale by the rule of grad_scaling",
    "global_norm": "take grad_norm from the sums and clip it at clip_norm",
    "nesterov": "look ahead by the momentum",
    "grad_averaging": "the new gradient weighs 1 - beta1 in the first moment, else 1",
    "lr_outside": "the learning rate multiplies the step, not what enters the momentum",
    "trust_clip": "the tensor's ratio is at most 1 (LARC: at most lr, and divided by lr)",
    "decoupled": "weight decay shrinks p by lr * weight_decay and does not enter g",
}
"""What the flags and options of this library's ops do."""


@cache
def signature_of(op: OpSpec) -> Signature:
    """Return what ``op.bind`` takes; further scalars of the plan come as ``scalars``."""
    ranges = (Parameter(o.name, Parameter.POSITIONAL_OR_KEYWORD, default=None) for o in op.operands)
    keywords: dict[str, Any] = {n: values[0] for n, values in op.flags.items() if n != "half"}
    keywords |= {name: default_of(op, name) for name in op.options}
    keywords |= {"decay": None} if decays_of(op) else {}
    keywords |= dict.fromkeys(op.hyper) | {"part": "all", "half": None, "state": None, "step": None}
    return Signature(
        [
            Parameter("arena", Parameter.POSITIONAL_OR_KEYWORD),
            *ranges,
            *(Parameter(n, Parameter.KEYWORD_ONLY, default=d) for n, d in keywords.items()),
            Parameter("scalars", Parameter.VAR_KEYWORD),
        ]
    )


def call_signature_of(op: OpSpec) -> Signature:
    """Return what the op itself takes: that of ``bind``, and the stream."""
    bind = signature_of(op)
    *others, scalars = bind.parameters.values()
    stream = Parameter("stream", Parameter.KEYWORD_ONLY, default=None)
    return bind.replace(parameters=[*others, stream, scalars])


def decays_of(op: OpSpec) -> tuple[str, ...]:
    """Return the kinds of weight decay that an optimizer may be given; none for another op."""
    if "decoupled" in op.options:
        return ("l2", "decoupled")
    if op.settings is None or "weight_decay" not in op.hyper:
        return ()
    return ("decoupled",) if op.settings.get("decoupled") else ("l2",)


def default_of(op: OpSpec, option: str) -> bool:
    """Return what an option is where the caller says nothing."""
    return (op.settings or {}).get(option, DEFAULTS[option])


def scalar_default(op: OpSpec, name: str) -> float:
    """Return the value of a scalar in a fresh arena; of beta1 and its like 1 - one_minus_beta1."""
    values = {**FP32_SCALARS, **INT32_SCALARS, **op.scalars}
    return values[name] if name in values else 1.0 - values[f"one_minus_{name}"]


def documentation(op: OpSpec, module: str) -> str:
    """Return the reference of an op as text; ``module`` is the file that declares it."""
    family = getattr(sys.modules.get(module), "__doc__", None) or ""
    parts = [
        _wrapped(f"{op.name}{call_signature_of(op)}", indent=" " * (len(op.name) + 1)),
        op.formula,
        _table("Ranges, in order; by default the plan's own", map(_range, op.operands)),
        _table("Flags (compile time: every combination is a kernel)", _flags(op)),
        _table("Options (run time: bits of one argument, see help(RangeOp))", _options(op)),
        _table("Settings (options that it wants by its nature)", _settings(op)),
        _table("Hyper-parameters (device scalars; given here, the launch has its own)", _hyper(op)),
        _bytes(op),
        _raises(op),
        f"Origin: {op.origin}" + (f"\nSource: {op.source}" if op.source else ""),
        f"From {module}:\n\n{family.strip()}" if family else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _table(title: str, rows: Iterator[tuple[str, ...]]) -> str:
    """Return rows under a title in columns, nothing where there are none."""
    lines = list(rows)
    if not lines:
        return ""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = [
        "    " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines
    ]
    return "\n".join([f"{title}:", *(text.rstrip() for text in texts)])


def _range(operand: Operand) -> tuple[str, ...]:
    plan = (
        f"series {operand.series}, {SERIES[operand.series].meaning}"
        if operand.series
        else "give it"
    )
    condition = f"with {operand.flag}" if operand.flag else ""
    types = [dtype.label for dtype in DType if dtype.element == operand.element]
    return operand.name, " or ".join(types) or "bytes", operand.role, plan, condition


def _flags(op: OpSpec) -> Iterator[tuple[str, ...]]:
    for name, values in op.flags.items():
        if name != "half":
            yield name, " | ".join(map(repr, values)), WORDS.get(name, "")
    if "half" in op.flags:
        yield "half", "'fp16' | 'bf16'", "format of the half ranges; a plan has its own"


def _options(op: OpSpec) -> Iterator[tuple[str, ...]]:
    for name in op.options:
        yield name, str(default_of(op, name)), WORDS.get(name, "")


def _settings(op: OpSpec) -> Iterator[tuple[str, ...]]:
    for name, on in (op.settings or {}).items():
        yield name, str(on), WORDS.get(name, "")


def _hyper(op: OpSpec) -> Iterator[tuple[str, ...]]:
    for name in op.hyper:
        yield name, f"{scalar_default(op, name):g}", "of its own" if name in op.scalars else ""


def _bytes(op: OpSpec) -> str:
    """Say how much a launch moves, from the leanest variant to the one with everything."""
    moved = sorted({op.bytes_per_element(flags) for flags in op.variants()})
    each = "a tensor" if op.kernel.count == "tensors" else "an element"
    span = " to ".join(f"{count:g}" for count in dict.fromkeys((moved[0], moved[-1])))
    return f"Bytes moved, {each}: {span}" if moved[-1] else ""


def _raises(op: OpSpec) -> str:
    ranges = "a range off 16 bytes, past the arena, of another length or dtype, or overlapping"
    return _wrapped(
        "Raises ValueError, TypeError or PlanError before anything is compiled or written: "
        + (f"{ranges}; " if op.operands else "")
        + "an unknown name; a value that a scalar cannot have; what the plan does not keep."
    )


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 96, subsequent_indent=indent, break_long_words=False)


def line(op: OpSpec) -> str:
    """Return the op in one line; ranges that a flag switches on have a question mark."""
    ranges = ", ".join(f"{o.name}?" if o.flag else o.name for o in op.operands)
    return f"<range op {op.name}({ranges})>"


def flags_in_words(flags: Mapping[str, Any]) -> str:
    """Return the flags that are on, as an op would be given them."""
    return ", ".join(name if on is True else f"{name}={on}" for name, on in flags.items() if on)
