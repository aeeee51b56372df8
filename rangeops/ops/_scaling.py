"""grad_scaling: the dynamic loss scale, wholly on the device.

    skipped:   tracker = 0;  hysteresis_tracker -= 1
               when it is used up: loss_scale = max(min_loss_scale, loss_scale*backoff_factor)
    else:      tracker += 1;  at growth_interval: tracker = 0, hysteresis refilled,
               loss_scale *= growth_factor if that stays <= max_loss_scale

Run once a step, behind ``begin_step``.  ``floor_hits`` counts the backoffs that met the floor, so
the host can learn that the scale has nowhere to go.  The origin's rule (halve, floor 1, never
grow) is growth_factor=1, backoff_factor=0.5, min_loss_scale=1.  Source: torch.amp.GradScaler's
update; hysteresis as in Megatron-LM.  A few scalars, no bytes an element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scalars import fp32_index, int32_index
from rangeops.kernels.shells import once
from rangeops.launch.op import range_op

SCALE, GRAD_SCALE = fp32_index("loss_scale"), fp32_index("grad_scale")
GROWTH, BACKOFF = fp32_index("growth_factor"), fp32_index("backoff_factor")
FLOOR, CEILING = fp32_index("min_loss_scale"), fp32_index("max_loss_scale")
SKIP_STEP, FOUND_INF = int32_index("skip_step"), int32_index("found_inf")
TRACKER, INTERVAL = int32_index("growth_tracker"), int32_index("growth_interval")
HYSTERESIS, PATIENCE = int32_index("hysteresis"), int32_index("hysteresis_tracker")
FLOOR_HITS = int32_index("floor_hits")


def scaling_rule(
    skipped, scale, growth, backoff, floor, ceiling, tracker, interval, full, patience
):
    """Return the new (scale, tracker, patience, hit) after one step."""
    hit = 0
    if skipped:
        tracker = 0
        patience = patience - 1
        if patience <= 0:
            patience = 0
            scale = scale * backoff
            if scale <= floor:
                scale = floor
                hit = 1
    else:
        tracker = tracker + 1
        if tracker >= interval:
            tracker = 0
            patience = full
            if scale * growth <= ceiling:
                scale = scale * growth
    return scale, tracker, patience, hit


def scaling_body(x: Any) -> Any:
    """Return ``body(s, k)`` for a vocabulary: the rule on the scalars where they lie."""
    rule = x.device(scaling_rule)
    int32 = x.int32

    def body(s, k):
        scale, tracker, patience, hit = rule(
            (k[SKIP_STEP] | k[FOUND_INF]) != 0,
            s[SCALE],
            s[GROWTH],
            s[BACKOFF],
            s[FLOOR],
            s[CEILING],
            k[TRACKER],
            k[INTERVAL],
            k[HYSTERESIS],
            k[PATIENCE],
        )
        s[SCALE] = scale
        s[GRAD_SCALE] = scale
        k[TRACKER] = int32(tracker)
        k[PATIENCE] = int32(patience)
        k[FLOOR_HITS] = int32(k[FLOOR_HITS] + hit)

    return x.device(body)


def scaling_reference(s, k):
    """Apply grad_scaling to the scalars in NumPy."""
    scale = s[SCALE]
    with np.errstate(over="ignore"):
        grown = scale * s[GROWTH]
    if k[SKIP_STEP] or k[FOUND_INF]:
        k[TRACKER] = 0
        k[PATIENCE] = max(k[PATIENCE] - 1, 0)
        if k[PATIENCE] == 0:
            k[FLOOR_HITS] += scale * s[BACKOFF] <= s[FLOOR]
            scale = max(s[FLOOR], scale * s[BACKOFF])
    elif k[TRACKER] + 1 >= k[INTERVAL]:
        k[TRACKER], k[PATIENCE] = 0, k[HYSTERESIS]
        scale = grown if grown <= s[CEILING] else scale
    else:
        k[TRACKER] += 1
    s[SCALE] = s[GRAD_SCALE] = scale


grad_scaling = range_op(
    "grad_scaling",
    origin="RANGE_GRAD_SCALING",
    formula="skipped: scale = max(min, scale*backoff); else grow at the interval",
    operands=(),
    kernel=once("grad_scaling", ("s", "k"), scaling_body, lambda: scaling_reference),
    bytes_per_element=lambda flags: 0,
    elementwise=False,
)
