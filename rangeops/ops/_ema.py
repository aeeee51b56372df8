"""The exponential moving average of the weights, and the switch to it.

    ema           e += (1-decay) * (p - e)            12 bytes an element
                  at the arena's first step e = p before it
    sema_switch   p = e;  a = half(p)                 8 (+2) bytes an element
                  with swap: p, e = e, p              16 (+2)

The average starts as the weights: at the arena's first step it is set to them before it moves, in
the fused update to those before the update.  It moves at every step that is not skipped, of every
tensor, resting ones too, so that it converges to what it averages; a tensor that was planned as
frozen has none.  (1-decay) comes from the tensor's row, after the warm-up if begin_step has one.
``sema_switch`` with ``swap=True`` exchanges live and averaged weights to the bit, so a second
call restores them.  Departure from torch's swa_utils: the difference form, which rounds once less.
"""

from __future__ import annotations

from dataclasses import replace

from rangeops.kernels.generate import elementwise
from rangeops.kernels.spec import HALVES, Stage, half_where_used, read, updated, written
from rangeops.launch.op import range_op


def ema_reference(e, p, one_minus_ema_decay):
    """Return e + (1-decay)*(p - e) in NumPy."""
    return e + one_minus_ema_decay * (p - e)


def ema_rule(e, p, one_minus_ema_decay):
    """Return e + (1-decay)*(p - e)."""
    return e + one_minus_ema_decay * (p - e)


def start_rule(p):
    """Return p, with which the average starts."""
    return p


START = Stage(("e",), start_rule, start_rule, "ema", when="start_ema", resting=True)
AVERAGE = Stage(("e",), ema_rule, ema_reference, "ema", resting=True)
"""What of an update's fused average runs ahead of the update, and what behind it."""

_EMA = (updated("e", "f4", "E"), read("p", "f4", "W"))

ema = range_op(
    "ema",
    origin="RANGE_EMA_PARAM_UPDATE",
    formula="e += (1-decay)*(p-e)",
    operands=_EMA,
    kernel=elementwise(
        "ema", _EMA, (replace(START, flag=""), replace(AVERAGE, flag="")), gated=True
    ),
    bytes_per_element=lambda flags: 12,
    hyper=("ema_decay",),
)


def exchange_rule(p, e):
    """Return (e, p)."""
    return e, p


def take_rule(e):
    """Return e."""
    return e


def copy_rule(p):
    """Return p, of which a half range gets the rounded value."""
    return p


_SWITCH = (
    updated("p", "f4", "W"),
    updated("e", "f4", "E"),
    written("a", "half", "A", "half_copy", copy_of="p"),
)

sema_switch = range_op(
    "sema_switch",
    origin="RANGE_SEMA_SWITCH",
    formula="p = e; a = half(p)",
    operands=_SWITCH,
    kernel=elementwise(
        "sema_switch",
        _SWITCH,
        (
            Stage(("p", "e"), exchange_rule, exchange_rule, "swap"),
            Stage(("p",), take_rule, take_rule, "!swap"),
            Stage(("a",), copy_rule, copy_rule, "half_copy"),
        ),
    ),
    bytes_per_element=lambda flags: (16 if flags["swap"] else 8) + 2 * flags["half_copy"],
    flags={"half": (None, *HALVES), "half_copy": (False, True), "swap": (False, True)},
    valid=half_where_used,
)
